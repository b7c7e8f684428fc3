"""What onboarding does on the node itself: this file travels as text and is run there by whatever python3 the node has.

Room: onboard, but for another machine: it imports nothing of ours, and nothing here imports it. It must parse on Python 3.6, so
that an old one can look for a newer one and hand over. One call does one thing, and its answer is one line of JSON.
"""

import base64
import hashlib
import json
import os
import pwd
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ETC, PKI, LIBRARY, UNIT = "/etc/llmgw", "/etc/llmgw/pki", "/usr/local/lib/llmgw", "llmgw-agent.service"
LINK, UNIT_FILE, ACCOUNT = "/usr/local/bin/llmgw-agent", "/etc/systemd/system/" + UNIT, "llmgw"
CACHE, RUN, STAGED, NEW_KEY = "/var/cache/llmgw", "/run/llmgw/run", ETC + "/.agent.toml.new", PKI + "/.new"
PAIRS = PKI + "/node.pem.d"                 # as the agent has it when it renews: node.pem and node.key lead to PAIRS/current/…
TRUST: Any = (("update-ca-certificates", "/usr/local/share/ca-certificates", ".crt", []),
              ("update-ca-trust", "/etc/pki/ca-trust/source/anchors", ".pem", ["extract"]))
FITTING = "import ssl, sqlite3, sys; sys.exit(sys.version_info < (3, 11))"
BOOT = "import sys,base64; PROGRAM=base64.b64decode(sys.stdin.readline()); exec(PROGRAM)"


def fitting_python() -> str:
    """The first interpreter that is new enough and whole, the system's own before any other; empty where there is none."""
    for name in ("/usr/bin/python3", "python3", "python3.14", "python3.13", "python3.12", "python3.11"):
        path = shutil.which(name)
        if path and subprocess.call([path, "-I", "-c", FITTING], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return path
    return ""


def hand_over(program: bytes) -> int:
    """Run all of this again under an interpreter that fits; its exit code."""
    python = fitting_python()
    if not python:
        answer({"failed": f"its python3 is {sys.version.split()[0]}, and there is no Python 3.11 or newer with ssl and sqlite3",
                "hint": "install one beside it, python3.11 say: it will be found"})
        return 0
    child = subprocess.Popen([python, "-c", BOOT], stdin=subprocess.PIPE)
    child.communicate(base64.b64encode(program) + b"\n" + sys.stdin.read().encode())
    return child.returncode


def answer(value: object) -> None:
    """The one line that is read; the empty one before it ends whatever a login shell may have printed."""
    sys.stdout.write(f"\nllmgw: {json.dumps(value)}\n")


os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
if sys.version_info < (3, 11):              # here, because an older one cannot even define what follows
    sys.exit(hand_over(globals()["PROGRAM"]))

Json = dict[str, Any]


class Failed(Exception):
    """A step cannot be done: a sentence, and maybe what to do."""


def read(path: str) -> str:
    """A text file, or an empty string."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def run(argv: list[str], timeout: float = 60.0, account: str = "", env: dict[str, str] | None = None) -> Json:
    """How a program ended and what it said. `account`: run it as somebody else."""
    base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": "/nonexistent"}
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False,
                              env={**base, **(env or {})}, preexec_fn=become(account) if account else None)
    except subprocess.TimeoutExpired:
        return {"status": None, "out": "", "err": f"does not answer within {timeout:g} s"}
    except (OSError, subprocess.SubprocessError) as problem:
        return {"status": None, "out": "", "err": getattr(problem, "strerror", None) or str(problem)}
    out, err = (said.decode("utf-8", "replace") for said in (done.stdout, done.stderr))
    return {"status": done.returncode, "out": out, "err": err}


def must(argv: list[str], timeout: float = 60.0) -> str:
    """The output of a program that has to succeed."""
    done = run(argv, timeout)
    if done["status"] != 0:
        raise Failed(f"{' '.join(argv[:3])}: {last_words(done)}")
    return str(done["out"])


def last_words(done: Json) -> str:
    said = " ".join((done["err"].strip() or done["out"].strip())[-400:].split())
    return said if done["status"] is None else f"status {done['status']}: {said}"


def become(name: str) -> Callable[[], None]:
    """What a child does to become another user, with all his groups and none of ours."""
    user = pwd.getpwnam(name)

    def change() -> None:
        os.initgroups(name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    return change


def account() -> str:
    """As whom engines are tried: the agent's account, or nobody while there is none."""
    try:
        return pwd.getpwnam(ACCOUNT).pw_name
    except KeyError:
        return "nobody"


def facts(data: Json) -> Json:
    """What this machine is and has; nothing is changed."""
    release = dict(line.split("=", 1) for line in read("/etc/os-release").splitlines() if "=" in line)
    cards = data["ib_root"]
    return {
        "uid": os.geteuid(), "python": sys.executable, "python_version": sys.version.split()[0],
        "openssl": bool(shutil.which("openssl")), "systemd": os.path.isdir("/run/systemd/system"),
        "trust": [tool[0] for tool in trust_tools()],
        "system": release.get("PRETTY_NAME", "").strip('"'), "hostname": socket.gethostname(), "time": time.time(),
        "addresses": [line.split()[3].split("/")[0] for line in run(["ip", "-o", "addr"])["out"].splitlines()],
        "agent_run": read(RUN).strip(),
        "nvidia_smi": shutil.which(data["nvidia_smi"]) or "",
        "adapters": [port for card in sorted(names(cards)) for port in ports(cards, card)], "ib_root": os.path.isdir(cards),
        "agent_active": run(["systemctl", "is-active", UNIT])["out"].strip() == "active",
        "shims": sorted(shims()), "groups": [group for group in ("video", "render") if group in read("/etc/group")],
        "certificate": read(PKI + "/node.pem"), "ca": read(PKI + "/ca.pem"), "key_fits": key_fits(),
        "agent_toml": read(ETC + "/agent.toml"), "unit": read(UNIT_FILE), "agent": os.path.realpath(LINK),
        "versions": {name: digest(f"{LIBRARY}/{name}/llmgw-agent.pyz") for name in names(LIBRARY)},
        "enabled": run(["systemctl", "is-enabled", UNIT])["out"].strip() == "enabled"}


def trust_tools() -> Any:
    """The rows of TRUST that this system has."""
    return [row for row in TRUST if shutil.which(row[0]) and os.path.isdir(row[1])]


def names(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def ports(root: str, card: str) -> list[Json]:
    """The ports of an adapter."""
    found = []
    for port in names(os.path.join(root, card, "ports")):
        place = os.path.join(root, card, "ports", port)
        found.append({"name": card, "port": int(port) if port.isdigit() else 0, "link_layer": read(place + "/link_layer").strip(),
                      "state": read(place + "/state").strip().split(": ")[-1]})
    return found


def shims() -> list[str]:
    """The agent files that running shims were started from."""
    words = [read(f"/proc/{pid}/cmdline").split("\0") for pid in os.listdir("/proc") if pid.isdigit()]
    return [os.path.realpath(line[1]) for line in words if len(line) > 3 and line[2:4] == ["shim", "--run-dir"]]


def key_fits() -> bool:
    """Whether key and certificate on this machine belong together."""
    if not os.path.exists(PKI + "/node.key"):
        return False
    ours = run(["openssl", "pkey", "-in", PKI + "/node.key", "-pubout"])["out"]
    return bool(ours) and ours == run(["openssl", "x509", "-in", PKI + "/node.pem", "-noout", "-pubkey"])["out"]


def digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def try_programs(data: Json) -> Json:
    """Run each program once, as the agent would."""
    return {"results": {name: run(argv, data["each_s"], account()) for name, argv in data["programs"].items()}}


def reach(data: Json) -> Json:
    """Shake hands with the control plane, believing the given authority and nobody else. Nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=data["ca"])
    try:
        with socket.create_connection((data["host"], data["port"]), 10) as plain, \
                context.wrap_socket(plain, server_hostname=data["host"]) as sock:
            peer = sock.getpeercert() or {}
    except ssl.SSLCertVerificationError as err:
        problem = f"what answers there shows a certificate that is not good: {err.verify_message}"
        return {"problem": problem, "trust": False}
    except ssl.SSLError as err:
        return {"problem": "what answers there is no TLS 1.3 server (%s)" % (err.reason or err), "trust": False}
    except OSError as err:
        return {"problem": err.strerror or str(err), "trust": True}
    return {"uris": [item[1] for item in peer.get("subjectAltName", ()) if item[0] == "URI"]}


def make_key(data: Json) -> Json:
    """A new key, which stays here, and a request for a certificate of it. What an interrupted run left is thrown away."""
    shutil.rmtree(NEW_KEY, ignore_errors=True)
    os.makedirs(PKI, 0o755, exist_ok=True)
    os.mkdir(NEW_KEY, 0o700)
    key = NEW_KEY + "/private.key"
    must(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key])
    os.chmod(key, 0o600)
    return {"csr": must(["openssl", "req", "-new", "-key", key, "-subj", "/CN=" + data["node"]])}


def put(path: str, content: bytes, mode: int = 0o644) -> bool:
    """Make `path` hold `content`, by a rename; False where it does already."""
    try:
        with open(path, "rb") as old:
            if old.read() == content and os.stat(path).st_mode & 0o777 == mode:
                return False
    except OSError:
        pass
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".llmgw-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return True


def point(link: str, target: str) -> bool:
    """Make `link` a symbolic link to `target`, by a rename; False where it is already."""
    if os.path.islink(link) and os.readlink(link) == target:
        return False
    temporary = link + ".new"
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.makedirs(os.path.dirname(link), 0o755, exist_ok=True)
    os.symlink(target, temporary)
    os.replace(temporary, link)
    return True


def install(data: Json) -> Json:
    """Put everything in place: what cannot do harm first, then what was checked, each by a rename. Says what it changed."""
    changed: list[str] = []
    if "state_dir" in data:
        changed += make_account(data["state_dir"])
    if "agent" in data:
        changed += place_agent(data["agent"], data["agent_digest"], data.get("archive"))
    if "ca" in data:
        changed += trust(data["cluster"], data["ca"])
    serial = data.get("serial")
    if serial:
        stage_certificate(serial, data["certificate"], data["ca"])
    if "staged_toml" in data:
        check(data["python"], data["agent"], data["staged_toml"])
    if serial:
        swap_certificate(serial)
        changed.append("certificate")
    if "ca" in data and put(PKI + "/ca.pem", data["ca"].encode()):
        changed.append("authority")
    if "agent_toml" in data and put(ETC + "/agent.toml", data["agent_toml"].encode()):
        changed.append("agent.toml")
    if "agent" in data and point(LINK, data["agent"]):
        changed.append("agent")
    if "unit" in data and put(UNIT_FILE, data["unit"].encode()):
        changed.append("unit")
    return {"changed": changed}


def make_account(state_dir: str) -> list[str]:
    """The account that agent and engines run as, and its directories."""
    made = []
    if account() != ACCOUNT:
        must(["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", state_dir, "--shell", "/usr/sbin/nologin",
              ACCOUNT])
        made.append("account " + ACCOUNT)
    for path in (state_dir, CACHE, PKI):
        os.makedirs(path, 0o755, exist_ok=True)
        give(path)
    os.chmod(state_dir, 0o700)
    return made


def give(path: str) -> None:
    user = pwd.getpwnam(ACCOUNT)
    os.chown(path, user.pw_uid, user.pw_gid)


def place_agent(path: str, wanted: str, archive: str | None) -> list[str]:
    """The agent beside its older versions. One that is there already is never written over: a shim may run from it."""
    if digest(path) == wanted:
        return []
    content = base64.b64decode(archive or "")
    if hashlib.sha256(content).hexdigest() != wanted:
        raise Failed("the agent did not arrive whole")
    put(path, content, 0o755)
    return [path]


def trust(cluster: str, ca: str) -> list[str]:
    """Make the whole system trust the cluster's authority, by whatever command it has for that."""
    for command, place, suffix, words in trust_tools()[:1]:
        if put(f"{place}/llmgw-{cluster}{suffix}", ca.encode()):
            must([command, *words], 120)
            return [f"system trust ({command})"]
    return []


def stage_certificate(serial: str, pem: str, ca: str) -> None:
    """The new key and its certificate, whole, in a directory of their own; nothing points there yet."""
    put(NEW_KEY + "/certificate.pem", pem.encode())
    put(NEW_KEY + "/ca.pem", ca.encode())
    os.makedirs(PAIRS, 0o755, exist_ok=True)
    for path in (PAIRS, NEW_KEY, *(NEW_KEY + "/" + name for name in names(NEW_KEY))):
        give(path)
    shutil.rmtree(f"{PAIRS}/pair-{serial}", ignore_errors=True)
    os.rename(NEW_KEY, f"{PAIRS}/pair-{serial}")


def swap_certificate(serial: str) -> None:
    """Make the staged pair the node's at one stroke; the pair before it is kept, for whoever reads it just now."""
    before = os.path.basename(os.path.realpath(PAIRS + "/current"))
    point(PAIRS + "/current", "pair-" + serial)
    point(PKI + "/node.key", "node.pem.d/current/private.key")
    point(PKI + "/node.pem", "node.pem.d/current/certificate.pem")
    for name in names(PAIRS):
        if name.startswith("pair-") and name not in ("pair-" + serial, before):
            shutil.rmtree(PAIRS + "/" + name)


def check(python: str, agent: str, toml: str) -> None:
    """Have the agent judge its configuration, as the user it will be, before anything points to it."""
    put(STAGED, toml.encode())
    done = run([python, "-I", agent, "check-config", "--config", STAGED], 120, ACCOUNT, {"CACHE_DIRECTORY": CACHE})
    os.unlink(STAGED)
    if done["status"] != 0:
        raise Failed("the agent would not start: " + " ".join(done["err"].replace(STAGED, "agent.toml").split()),
                     "give other flags: nothing on the node uses what was put there")


def activate(data: Json) -> Json:
    """Enable and start the agent, or start it again where `restart` says that it has news. Engines go on."""
    must(["systemctl", "daemon-reload"])
    must(["systemctl", "enable", UNIT])
    run(["systemctl", "reset-failed", UNIT])
    done = run(["systemctl", "restart" if data["restart"] else "start", UNIT], 90)
    if done["status"] != 0:
        raise Failed("the agent does not start: " + journal(), f"journalctl -u {UNIT} on the node has more")
    return {"removed": prune()}


def journal() -> str:
    lines = run(["journalctl", "-u", UNIT, "-n", "5", "--no-pager", "-o", "cat"])["out"]
    return " | ".join(line.strip() for line in lines.splitlines() if line.strip())[-600:]


def prune() -> list[str]:
    """Remove agent versions that nobody uses: not the installed one, not the newest other one, none that a shim runs from."""
    used = set(shims()) | {os.path.realpath(LINK)}
    spare = [path for path in (os.path.join(LIBRARY, name) for name in names(LIBRARY))
             if not any(file.startswith(path + "/") for file in used)]
    spare.sort(key=os.path.getmtime)
    for path in spare[:-1]:
        shutil.rmtree(path)
    return spare[:-1]


def last_lines(_data: Json) -> Json:
    """The end of the agent's log, and which run of it this is."""
    return {"journal": journal(), "agent_run": read(RUN).strip()}


OPERATIONS = {each.__name__: each for each in (facts, try_programs, reach, make_key, install, activate, last_lines)}


def main() -> None:
    """Do what standard input asks for."""
    try:
        data = json.loads(base64.b64decode(sys.stdin.readline()))
        answer(OPERATIONS[data["do"]](data))
    except Failed as err:
        answer({"failed": err.args[0], "hint": "".join(err.args[1:])})
    except OSError as err:
        answer({"failed": f"{err.filename or 'system'}: {err.strerror or err}", "hint": ""})


if __name__ == "__main__":
    main()
