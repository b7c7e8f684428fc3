# The first thing Python runs in a .pyz. It must parse on every Python a machine may have, 2.7 included, so that an old one
# gets a sentence instead of a SyntaxError: no f-strings, no annotations, and nothing else in this file.
import sys

if sys.version_info < (3, 11):
    sys.stderr.write("@PROGRAM@ needs Python 3.11 or newer and this is Python %d.%d (%s)\n  hint: run it as python3.11 %s\n"
                     % (sys.version_info[0], sys.version_info[1], sys.executable, sys.argv[0]))
    sys.exit(78)

from llmgw_boot import start

if __name__ == "__main__":
    sys.exit(start("@ROLE@", "@DIGEST@"))
