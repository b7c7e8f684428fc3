"""What costs much to import is imported when it is used, not before."""

import subprocess
import sys


def test_neither_the_authority_nor_the_client_module_imports_what_is_large() -> None:
    program = ("import sys, lib.pki.authority, lib.net.client, lib.net.server\n"
               "print([name for name in ('cryptography', 'requests', 'urllib3') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
