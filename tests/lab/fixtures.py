"""The lab as tests are given it: one network and one control plane for all of a run, and machines to onboard."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.lab import image
from tests.lab.cluster import Cluster, cluster
from tests.lab.network import Network, network
from tests.lab.node import Machine, machine

CONTROL, STRANGER = 140, 141                # the control plane's host, and a host that is no node
NODES = (144, 145, 146, 147, 148)


@pytest.fixture(scope="session")
def net(request: pytest.FixtureRequest) -> Iterator[Network]:
    if problem := image.obstacle():
        assert not os.environ.get("CI"), problem
        said = f"NO LAB, SO ONBOARDING AND SERVICES ARE NOT TESTED: {problem}"
        request.config.get_terminal_writer().line(f"\n{said}", red=True)
        pytest.skip(said)
    with network((CONTROL, STRANGER, *NODES)) as made:
        yield made


@pytest.fixture(scope="session")
def plane(net: Network, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(net.hosts[CONTROL], dist, tmp_path_factory.mktemp("plane")) as made:
        yield made


def booted(net: Network, number: int, *, binds: tuple[str, ...] = ()) -> AbstractContextManager[Machine]:
    """A bare machine on this host, up for the length of a `with`."""
    return machine(image.node_image(), f"llmgw-node{number - 140:02d}", net.hosts[number], net.hosts[CONTROL], binds=binds)
