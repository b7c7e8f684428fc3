"""Live tests run the built programs."""

from pathlib import Path

import pytest

from tests.lab.fixtures import net, plane

__all__ = ["built", "net", "plane"]


@pytest.fixture(scope="session", autouse=True)
def built(dist: Path) -> Path:
    """dist/ as the tree is now, before the first of them."""
    return dist
