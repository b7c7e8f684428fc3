"""`init`, and what its files are good for: the commands of an operator against a real control plane."""

import json
import os
import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.live.ctl import PROGRAM, ask, ctl, init, serving

PRIVATE = ("ca", "ca/ca.key", "secret", "pki/control-plane.key", "pki/operator.key", "state", "state/ctl.db")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation whose control plane runs."""
    directory = init(tmp_path_factory.mktemp("ctl") / "llmgw")
    with serving(directory):
        yield directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def one_line(done: "subprocess.CompletedProcess[str]", code: int, *parts: str) -> None:
    """A failure is one line, perhaps with a hint, and this exit code."""
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (code, ""), done
    assert lines[0].startswith("llmgw-ctl: ")
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("  hint: ")), done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


def test_one_command_makes_everything_and_keeps_secrets_to_itself(tmp_path: Path) -> None:
    home = init(tmp_path / "new" / "llmgw")
    for name in PRIVATE:
        assert stat.S_IMODE((home / name).stat().st_mode) & 0o077 == 0, name
    assert len(bytes.fromhex((home / "secret").read_text())) == 32
    assert list(tmp_path.joinpath("new").iterdir()) == [home]


def test_an_installation_that_is_there_is_not_touched(tmp_path: Path) -> None:
    home = init(tmp_path / "llmgw")
    before = contents(home)
    one_line(ctl("--dir", home, "init", "--cluster", "other"), 4, "installation already", "nothing was changed")
    assert contents(home) == before


def test_files_of_others_in_the_directory_stay(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "agent.toml").write_text("mine")
    (tmp_path / "pki" / "node.pem").write_text("mine too")
    init(tmp_path)
    assert (tmp_path / "agent.toml").read_text() == "mine"
    assert (tmp_path / "pki" / "operator.pem").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700


@pytest.mark.parametrize(("words", "code", "part"), [
    (("--cluster", "Lab"), 2, "cannot be the name of a cluster"),
    (("--cluster", "lab", "--listen", "here"), 2, "--listen 'here'"),
    (("--cluster", "lab", "--network", "10.0.0.0/8", "--address", "192.168.0.1"), 2, "192.168.0.1 is in none of the networks"),
    (("--cluster", "lab", "--address", "ctl.example.org"), 2, "ctl.example.org"), ((), 2, "--cluster")])
def test_a_refused_init_leaves_nothing(words: tuple[str, ...], code: int, part: str, tmp_path: Path) -> None:
    one_line(ctl("--dir", tmp_path / "llmgw", "init", *words), code, part)
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_make_one_installation(tmp_path: Path) -> None:
    words = [*PROGRAM, "--dir", str(tmp_path / "llmgw"), "init", "--cluster", "lab", "--address", "127.0.0.1"]
    both = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert sorted(process.wait(60) != 0 for process in both) == [False, True]
    assert list(tmp_path.iterdir()) == [tmp_path / "llmgw"]


def test_a_new_cluster_is_empty_and_says_so(home: Path) -> None:
    assert ask(home, "status")["cluster"] == "lab"
    for what in ("nodes", "replicas", "models", "events"):
        assert ask(home, what) == []
        done = ctl("--dir", home, what)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.startswith("no ")


def test_the_four_flags_do_instead_of_a_directory(home: Path) -> None:
    server = next(line for line in (home / "ctl.toml").read_text().splitlines() if line.startswith("server")).split('"')[1]
    pki = home / "pki"
    flags = ("--server", server, "--cert", pki / "operator.pem", "--key", pki / "operator.key", "--ca", pki / "ca.pem")
    assert ctl("--dir", "/etc/none", *flags, "nodes").returncode == 0
    one_line(ctl("--dir", home, "--cert", home / "pki/operator.pem", "nodes"), 2, "--cert and --key belong together")


def test_what_cannot_work_is_one_line(home: Path, tmp_path: Path) -> None:
    other = init(tmp_path / "other", "other")
    one_line(ctl("--dir", other, "nodes"), 1, "connection refused")
    one_line(ctl("--dir", home, "--ca", other / "pki/ca.pem", "nodes"), 1, "is not signed by")
    one_line(ctl("--dir", home, "--cert", other / "pki/operator.pem", "--key", other / "pki/operator.key", "nodes"), 4,
             "not a control-plane of other")
    one_line(ctl("--dir", home, "--cert", home / "pki/control-plane.pem", "--key", home / "pki/control-plane.key", "nodes"), 78,
             "role control-plane")
    one_line(ctl("--dir", home, "--cert", home / "pki/operator.pem", "--key", home / "pki/control-plane.key", "nodes"), 78,
             "is not the key of")
    one_line(ctl("--dir", tmp_path, "nodes"), 78, "ctl.toml", "is not there")
    one_line(ctl("--dir", home, "node", "../status"), 3)
    one_line(ctl("--dir", home, "node", "nobody"), 3, "there is no node 'nobody'")


def test_half_a_certificate_is_one_line(tmp_path: Path) -> None:
    home = init(tmp_path / "llmgw")
    whole = (home / "pki/control-plane.pem").read_text()
    (home / "pki/control-plane.pem").write_text(whole[:len(whole) // 2])
    done = ctl("--dir", home, "serve")
    assert done.returncode == 78
    assert "control-plane.pem" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_a_second_control_plane_does_not_start(home: Path) -> None:
    done = ctl("--dir", home, "serve")
    assert done.returncode == 73
    assert "Traceback" not in done.stderr


def test_an_api_key_is_shown_once_and_can_be_revoked(home: Path) -> None:
    done = ctl("--dir", home, "keys", "create", "somebody", "--concurrency", "3", "--model", "m")
    key, id = done.stdout.strip(), done.stdout.split("_")[1]
    entry = next(entry for entry in ask(home, "keys", "list") if entry["id"] == id)
    assert (entry["name"], entry["limits"]["concurrency"], entry["limits"]["models"]) == ("somebody", 3, ["m"])
    assert key not in (home / "state" / "ctl.db").read_bytes().decode("latin-1")
    assert ctl("--dir", home, "keys", "revoke", id).returncode == 0
    assert not [entry for entry in ask(home, "keys", "list") if entry["id"] == id]
    assert ctl("--dir", home, "keys", "revoke", id).returncode == 3


def test_a_catalog_is_taken_whole_or_not_at_all(home: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('[models.m]\n[profiles.p]\nmodel = "m"\nengine = "sim"\n')
    bad.write_text('[models.m]\n[profiles.p]\nmodel = "m"\nengine = "smi"\n')
    assert [(row["profile"], row["change"]) for row in ask(home, "catalog", "diff", str(good))] == [("p", "added")]
    assert ask(home, "models") == []
    assert ctl("--dir", home, "catalog", "apply", good).returncode == 0
    assert [row["id"] for row in ask(home, "models")] == ["m"]
    one_line(ctl("--dir", home, "catalog", "apply", bad), 78, f"{bad}:4", 'did you mean "sim"?')
    assert (home / "catalog.toml").read_text() == good.read_text()
    replica = eventually(lambda: ask(home, "replicas"))[0]
    assert (replica["state"], replica["shards"]) == ("pending", [])
    assert set(replica) == {"id", "profile", "model", "state", "shard_count", "epoch", "shards", "endpoint", "reason"}
    assert ctl("--dir", home, "replica", replica["id"]).stdout.splitlines()[0].split() == ["replica", replica["id"]]


def test_watching_into_a_pipe_writes_each_change_whole(home: Path) -> None:
    with subprocess.Popen([*PROGRAM, "--dir", str(home), "keys", "list", "--watch", "-o", "json"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            before = json.loads(_object(process))
            ctl("--dir", home, "keys", "create", "seen")
            after = json.loads(_object(process))
            assert [entry["name"] for entry in after if entry not in before] == ["seen"]
        finally:
            process.terminate()


def _object(process: "subprocess.Popen[str]") -> str:
    """The lines up to the one that ends an indented list."""
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line in ("]\n", "[]\n"):
            break
    return "".join(lines)


def test_a_certificate_by_hand_takes_only_the_key_of_a_request(home: Path, tmp_path: Path) -> None:
    key, csr = tmp_path / "router.key", tmp_path / "request.csr"
    subprocess.run(["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                    "-subj", "/CN=somebody-else", "-out", csr], check=True, capture_output=True)
    issue = ("--dir", home, "ca", "issue", "--role", "router", "--name", "router01", "--csr", csr, "--out", tmp_path / "out")
    assert ctl(*issue).returncode == 0
    assert sorted(os.listdir(tmp_path / "out")) == ["ca.pem", "router.pem"]
    text = subprocess.run(["openssl", "x509", "-in", tmp_path / "out/router.pem", "-noout", "-text"], check=True,
                          capture_output=True, text=True).stdout
    assert "URI:llmgw://lab/router/router01" in text
    assert "somebody-else" not in text
    one_line(ctl(*issue), 4, "exists already")
    key.chmod(0o600)
    one_line(ctl("--dir", home, "--cert", tmp_path / "out/router.pem", "--key", key, "nodes"), 78, "role router")


def test_a_key_made_here_is_private(home: Path, tmp_path: Path) -> None:
    words = ("--dir", home, "ca", "issue", "--role", "node", "--name", "node01", "--out", tmp_path / "out")
    one_line(ctl(*words), 2, "needs its address")
    assert ctl(*words, "--address", "127.0.0.11").returncode == 0
    assert stat.S_IMODE((tmp_path / "out/node.key").stat().st_mode) == 0o600


def test_a_reader_that_has_seen_enough_is_no_failure(home: Path) -> None:
    line = f"{shlex.join([*PROGRAM, '--dir', str(home), 'status'])} | true"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
