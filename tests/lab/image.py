"""The root file system of a lab node: Debian with systemd and sshd, made once and kept under build/lab."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "lab"
SUITE = "bookworm"
PACKAGES = ("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "ca-certificates", "openssl", "iproute2", "curl",
            "sudo", "procps", "libgomp1")
USERS = ("admin", "plain")                  # one whom sudo lets do everything, one whom it asks for a password
NEEDED = ("systemd-nspawn", "mmdebstrap", "ssh", "ssh-keygen", "ssh-keyscan", "ip")
REMEDY = "apt-get install systemd-container mmdebstrap openssh-client openssh-server iproute2 (.ci/run does it)"


def obstacle() -> str:
    """Why this machine cannot run lab nodes, or an empty string."""
    if os.geteuid() != 0:
        return "lab nodes need root"
    lacking = [program for program in NEEDED if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    if lacking:
        return f"{', '.join(lacking)} not found: {REMEDY}"
    made = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {made.stderr.strip()}" if made.returncode else ""


def key() -> Path:
    """The private key that all lab machines let in."""
    path = PLACE / "id"
    if not path.exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)], check=True)
    return path


def node_image() -> Path:
    """The directory with a node's root file system; made in half a minute where it is not there yet."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with open(PLACE / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        recipe = hashlib.sha256(repr((SUITE, PACKAGES, USERS, key().with_suffix(".pub").read_text(), 2)).encode()).hexdigest()
        image = PLACE / f"node-{recipe[:12]}"
        if not image.exists():
            for old in PLACE.glob("node-*"):
                shutil.rmtree(old)
            _make(image)
        return image


def _make(image: Path) -> None:
    work = image.with_name(f"new-{image.name}")
    shutil.rmtree(work, ignore_errors=True)
    sources = sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))[:1]
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("man", "doc", "locale")]
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", "--format=directory",
                    f"--include={','.join(PACKAGES)}", *left_out, SUITE, str(work), *map(str, sources)], check=True)
    (work / "etc" / "hostname").unlink(missing_ok=True)
    (work / "etc" / "machine-id").write_text("")
    _let_in(work, work / "root", 0)
    for user in USERS:
        subprocess.run(["chroot", str(work), "useradd", "--create-home", "--shell", "/bin/bash", user], check=True)
        home = work / "home" / user
        _let_in(work, home, home.stat().st_uid)
    sudo = work / "etc" / "sudoers.d" / "admin"
    sudo.write_text("admin ALL=(ALL) NOPASSWD: ALL\n")
    sudo.chmod(0o440)
    work.rename(image)


def _let_in(work: Path, home: Path, owner: int) -> None:
    ssh = home / ".ssh"
    ssh.mkdir(mode=0o700, exist_ok=True)
    (ssh / "authorized_keys").write_text(key().with_suffix(".pub").read_text())
    for path in (ssh, ssh / "authorized_keys"):
        os.chown(path, owner, owner)
