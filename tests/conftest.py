"""What all tests share: a clean environment, the built programs, and a real engine with a real model."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.programs import DIST, ROOT, RUN, processes_naming

ARCHIVE = ROOT / "packaging" / "archive.py"
TRACKER = "multiprocessing.resource_tracker"        # Python's own; it ends when this process does

# Such a variable replaces the trust store of what a test starts, and a TLS test would then prove something else.
for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
    os.environ.pop(name, None)
# The start-up cache of what tests start: kept between runs, and out of the home directory of whoever runs them.
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "cache")
os.environ.pop("CACHE_DIRECTORY", None)
# Tests that were started in the background have SIGINT ignored, and so would be whatever they start; with a handler it is not.
signal.signal(signal.SIGINT, signal.default_int_handler)
# By this everything is found that the tests start and that does not throw its environment away.
os.environ[RUN] = uuid.uuid4().hex


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests end with no process of theirs running: none that bears their mark, or works with their directory."""
    yield
    mine = (f"{RUN}={os.environ[RUN]}", f"{tmp_path_factory.getbasetemp()}/")
    left: dict[int, str] = {}

    def gone() -> bool:
        left.clear()
        found = processes_naming(*mine).items()
        left.update((pid, command) for pid, command in found if TRACKER not in command)
        return not left
    try:
        eventually(gone)
    except AssertionError:
        raise AssertionError(f"the tests have left these running: {left}") from None


def _archive(*words: str) -> str:
    done = subprocess.run([sys.executable, str(ARCHIVE), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def dist() -> Path:
    """The directory of the five .pyz files, built from the tree as it is now."""
    _archive()
    return DIST


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
