"""What onboarding refuses before it issues or changes anything, each with a sentence that says why."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.lab.cluster import Cluster
from tests.lab.fixtures import STRANGER, booted
from tests.lab.image import key
from tests.lab.network import ENVIRONMENT, Network
from tests.lab.node import Machine

ENGINES = {                                 # what lies at the path: what is said of it
    "missing": ("rm -f /opt/engine", "No such file"),
    "not executable": ("echo hello > /opt/engine; chmod 644 /opt/engine", "Permission denied"),
    "for another processor": ("head -c 64 /dev/urandom > /opt/engine; chmod 755 /opt/engine", "Exec format error"),
    "without a library": ("printf '#!/bin/sh\\necho error while loading shared libraries: libfoo.so.1 >&2; exit 127\\n' "
                          "> /opt/engine; chmod 755 /opt/engine", "libfoo.so.1"),
    "only for root": ("printf '#!/bin/sh\\necho version: 1\\n' > /opt/engine; chmod 700 /opt/engine", "Permission denied")}


@pytest.fixture(scope="module")
def bare(net: Network) -> Iterator[Machine]:
    """A machine that nothing is ever installed on."""
    with booted(net, 148) as made:
        yield made
        assert made.run("ls -d /etc/llmgw /usr/local/lib/llmgw /var/lib/llmgw 2>/dev/null || true") == ""


def refused(plane: Cluster, node: Machine, *words: str, code: int = 1, said: str, trust: tuple[str, ...] = ("--tofu",),
            name: str = "") -> None:
    done = plane.onboard(node, *words, trust=trust, name=name)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr, done.stderr
    assert "  hint: " in done.stderr
    assert not [row for row in plane.ask("ca", "list") if row["id"] == (name or node.name)]


@pytest.mark.parametrize(("skew_s", "fits"), [(10, True), (-10, True), (240, False), (-7200, False)])
def test_a_clock_that_is_far_off_is_found_before_anything_is_issued(plane: Cluster, bare: Machine, skew_s: int,
                                                                    fits: bool) -> None:
    """Machines of the lab share a clock, so this one's Python is told another time."""
    bare.write("/usr/local/bin/python3", '#!/bin/sh\nexec /usr/bin/python3 -c "import time; real = time.time; '
               f'time.time = lambda: real() + {skew_s}; $2"\n', "755")
    try:
        if fits:
            done = plane.onboard(bare, "--dry-run")
            assert done.returncode == 0, done.stderr
        else:
            refused(plane, bare, said=f"{abs(skew_s)} s {'ahead of' if skew_s > 0 else 'behind'} ours")
    finally:
        bare.run("rm /usr/local/bin/python3")


@pytest.mark.parametrize("what", ENGINES)
def test_an_engine_that_does_not_run_there_is_named(plane: Cluster, bare: Machine, what: str) -> None:
    make, said = ENGINES[what]
    bare.run(make)
    refused(plane, bare, "--engine", "llama-server=/opt/engine", said=said)


def test_an_engine_that_is_slow_to_tell_its_version_is_waited_for(plane: Cluster, bare: Machine) -> None:
    bare.write("/opt/engine", "#!/bin/sh\nsleep 3\necho version: 4242\n", "755")
    done = plane.onboard(bare, "--engine", "llama-server=/opt/engine", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "engines        llama-server 4242" in done.stderr


def test_a_fabric_without_adapters_is_refused(plane: Cluster, bare: Machine) -> None:
    refused(plane, bare, "--fabric", "ib-a", said="/sys/class/infiniband does not exist there")


@contextlib.contextmanager
def listening(net: Network, words: Sequence[str | Path], port: int) -> Iterator[None]:
    """A program that listens on the strangers' host."""
    host = net.hosts[STRANGER]
    with subprocess.Popen(host.words(words), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env=ENVIRONMENT) as process:
        try:
            eventually(lambda: host.run("ss", "-Hltn", f"sport = :{port}").stdout, timeout_s=20)
            yield
        finally:
            process.kill()


def test_another_tls_server_at_the_address_is_found_by_the_node_before_anything_is_sent(
        net: Network, plane: Cluster, bare: Machine, tmp_path: Path) -> None:
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x",
                    "-keyout", tmp_path / "key", "-out", tmp_path / "pem"], check=True, capture_output=True)
    url = f"https://{net.hosts[STRANGER].address}:7443"
    with listening(net, ["openssl", "s_server", "-accept", "7443", "-key", tmp_path / "key", "-cert", tmp_path / "pem"], 7443):
        refused(plane, bare, "--server", url, said="certificate that is not good")
    refused(plane, bare, "--server", url, said="Connection refused")


def test_a_server_of_the_cluster_that_is_no_control_plane_is_refused(net: Network, plane: Cluster, bare: Machine,
                                                                    tmp_path: Path) -> None:
    address, out = net.hosts[STRANGER].address, tmp_path / "out"
    made = plane.ctl("ca", "issue", "--role", "node", "--name", "impostor", "--address", address, "--out", out)
    assert made.returncode == 0, made.stderr
    with listening(net, ["openssl", "s_server", "-accept", "7443", "-key", out / "node.key", "-cert", out / "node.pem"], 7443):
        refused(plane, bare, "--server", f"https://{address}:7443", said="not a control plane of lab")


HOSTILE = ("GPU-Node01", "node_1", "node.a.b", "n" * 64, "-x", "ノード", "a b", "../x", "$(touch /tmp/llmgw-pwned)",
           "`id`", "a;reboot", "a\nb", "42", "")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_cannot_be_is_refused_before_anybody_is_spoken_to(plane: Cluster, name: str) -> None:
    with plane.recorded() as (env, record):
        done = plane.program("llmgw-onboard-node", "--dir", plane.directory, f"--node={name}", "--addr", "10.0.0.148",
                             "--server", plane.url, "--tofu", env=env)
    assert done.returncode == 2, done.stderr
    assert "--node" in done.stderr
    assert not list(record.glob("*.argv"))
    assert not Path("/tmp/llmgw-pwned").exists()


def test_words_that_a_shell_would_run_reach_the_node_as_words(plane: Cluster, bare: Machine) -> None:
    hostile = "$(touch /tmp/pwned) `touch /tmp/pwned`; touch /tmp/pwned #'\""
    done = plane.onboard(bare, "--dry-run", "--label", f"a={hostile}", "--nvidia-smi", f"/opt/{hostile}")
    assert done.returncode == 0, done.stderr
    refused(plane, bare, "--engine", f"llama-server=/opt/{hostile}", said="No such file")
    assert bare.run("ls /tmp/pwned 2>/dev/null || echo none") == "none"


@pytest.fixture(scope="module")
def sshd(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An ssh server alone on port 2222 of the strangers' host; its host key can be changed."""
    place = tmp_path_factory.mktemp("sshd")
    Path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / "host"], check=True)
    (place / "allowed").write_text(key().with_suffix(".pub").read_text())
    (place / "config").write_text(f"Port 2222\nHostKey {place}/host\nAuthorizedKeysFile {place}/allowed\nUsePAM no\n"
                                  "StrictModes no\nPidFile none\nPermitRootLogin yes\n")
    with listening(net, ["/usr/sbin/sshd", "-D", "-f", place / "config"], 2222):
        yield place


def ssh_only(plane: Cluster, net: Network, *words: str, home: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return plane.program("llmgw-onboard-node", "--dir", plane.directory, "--node", "lone", "--addr", net.hosts[STRANGER].address,
                         "--server", plane.url, "--ssh-port", "2222", *words, env={"HOME": str(home)} if home else {})


def test_a_host_key_that_nobody_knows_is_refused_with_the_ways_to_learn_it(net: Network, plane: Cluster, sshd: Path) -> None:
    done = ssh_only(plane, net, "--ssh-key", str(key()))
    assert done.returncode == 4, done.stderr
    assert "host key is not known here" in done.stderr
    assert "--host-key" in done.stderr


def test_another_host_key_than_the_pinned_one_is_refused(net: Network, plane: Cluster, sshd: Path) -> None:
    done = ssh_only(plane, net, "--host-key", "SHA256:" + "A" * 43)
    assert done.returncode == 4, done.stderr
    assert "shows other host keys" in done.stderr
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIi"
    done = ssh_only(plane, net, "--host-key", other, "--ssh-key", str(key()))
    assert (done.returncode, "another than the one that is known" in done.stderr) == (4, True), done.stderr


def test_the_right_fingerprint_lets_ssh_in_and_a_wrong_key_is_told(net: Network, plane: Cluster, sshd: Path,
                                                                   tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "wrong"], check=True)
    shown = subprocess.run(["ssh-keygen", "-lf", sshd / "host.pub"], capture_output=True, text=True, check=True).stdout.split()[1]
    done = ssh_only(plane, net, "--host-key", shown, "--ssh-key", str(tmp_path / "wrong"))
    assert (done.returncode, "does not let us in" in done.stderr) == (1, True), done.stderr


def test_an_ssh_server_that_is_not_there_is_told(net: Network, plane: Cluster) -> None:
    done = plane.program("llmgw-onboard-node", "--dir", plane.directory, "--node", "lone", "--addr", net.hosts[STRANGER].address,
                         "--server", plane.url, "--ssh-port", "2299", "--tofu")
    assert (done.returncode, "connection refused" in done.stderr) == (1, True), done.stderr
