"""The authority's work on a bare Debian: the system's Python and nothing else, first-run unpacking included."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lab import image

ROLES = ("ctl", "onboard-node")


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "python"), [("bookworm", "3.11"), ("trixie", "3.13")])
def test_a_bare_debian_can_be_the_host_of_the_authority(dist: Path, tmp_path: Path, suite: str, python: str) -> None:
    assert not image.obstacle()
    root = tmp_path / suite
    source = sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))[0].read_text()
    (tmp_path / "debian.sources").write_text(re.sub(r"bookworm", suite, source))
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--include=python3", "--format=directory",
                    suite, str(root), str(tmp_path / "debian.sources")], check=True)
    for role in ROLES:
        shutil.copy(dist / f"llmgw-{role}.pyz", root / "root")

    def inside(*words: str) -> str:
        done = subprocess.run(["chroot", str(root), "/usr/bin/env", "-i", "HOME=/root", "PATH=/usr/bin:/bin", *words],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout
    assert inside("python3", "--version").startswith(f"Python {python}.")
    assert "No module named" in subprocess.run(["chroot", str(root), "python3", "-m", "pip"], capture_output=True, text=True,
                                               check=False).stderr
    for _ in ("first run", "from the cache"):
        assert inside("python3", "/root/llmgw-onboard-node.pyz", "--version")
    inside("python3", "/root/llmgw-ctl.pyz", "init", "--cluster", "lab", "--address", "10.0.0.140")
    inside("python3", "/root/llmgw-ctl.pyz", "ca", "issue", "--role", "node", "--name", "node01", "--address", "10.0.0.141",
           "--out", "/root/node01")
    made = root / "root" / "node01"
    verified = subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", str(made / "ca.pem"), str(made / "node.pem")],
                              capture_output=True, text=True, check=False)
    assert verified.returncode == 0, verified.stderr
    assert (made / "node.key").stat().st_mode & 0o777 == 0o600
