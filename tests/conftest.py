"""What all tests share: a clean environment, the built programs, and a real engine with a real model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ARCHIVE = ROOT / "packaging" / "archive.py"

# Such a variable replaces the trust store of what a test starts, and a TLS test would then prove something else.
for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
    os.environ.pop(name, None)
# The start-up cache of what tests start: kept between runs, and out of the home directory of whoever runs them.
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "cache")
os.environ.pop("CACHE_DIRECTORY", None)


def _archive(*words: str) -> str:
    done = subprocess.run([sys.executable, str(ARCHIVE), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def dist() -> Path:
    """The directory of the five .pyz files, built from the tree as it is now."""
    _archive()
    return ROOT / "dist"


@pytest.fixture(scope="session")
def engine_files() -> Path:
    """A real llama.cpp and a small model, fetched once into build/."""
    return Path(_archive("engine"))


@pytest.fixture(scope="session")
def llama_server(request: pytest.FixtureRequest) -> Path:
    """A real llama-server: LLMGW_LLAMA_SERVER, or the pinned one."""
    if given := os.environ.get("LLMGW_LLAMA_SERVER"):
        return Path(given)
    files: Path = request.getfixturevalue("engine_files")
    return next(files.glob("*/bin/llama-server"))


@pytest.fixture(scope="session")
def smollm2(request: pytest.FixtureRequest) -> Path:
    """A real model with chat skill, 98 MB: LLMGW_GGUF, or the pinned SmolLM2-135M-Instruct."""
    if given := os.environ.get("LLMGW_GGUF"):
        return Path(given)
    files: Path = request.getfixturevalue("engine_files")
    return next(files.glob("*/*.gguf"))
