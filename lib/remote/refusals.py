"""Why ssh did not get there, in sentences with a way out.

Room: remote. Pure. 255 is ssh's own failure; any other status comes from the command on the other side.
"""

import re

from lib.host.run import Outcome

SSH_FAILED, NOT_FOUND = 255, 127
_NO_KEY = re.compile(r"No \S+ host key is known|Host key verification failed", re.IGNORECASE)
_CHANGED = re.compile(r"host key for .+ has changed|REMOTE HOST IDENTIFICATION HAS CHANGED|Offending \S+ key", re.IGNORECASE)
# what ssh says: (what happened, what to do)
_SAYINGS: tuple[tuple[str, str, str], ...] = (
    (r"Permission denied", "does not let us in with any key we have", "name a key with --ssh-key, or put its public half into "
     "authorized_keys there"),
    (r"Too many authentication failures", "was offered too many keys", "name the right one with --ssh-key"),
    (r"Connection refused", "connection refused", "is sshd running there, and is this its port?"),
    (r"timed out|Timeout, server", "does not answer", "check the address, the firewall, and that the machine runs"),
    (r"No route to host|Network is unreachable", "there is no way to this address", "check the address and the network"),
    (r"Could not resolve hostname", "this name is not known", "give an IP address"),
    (r"(UNPROTECTED PRIVATE KEY|bad permissions)", "the key file is open to others", "chmod 600 it"),
    (r"no mutual signature|no matching", "and ssh here have no algorithm in common", "update the older of both"),
    (r"Connection (closed|reset)|kex_exchange_identification", "closed the connection", "see the log of sshd there"),
)


def is_about_host_key(stderr: str) -> bool:
    """Whether ssh stopped because it could not tell that this is the right machine."""
    return bool(_NO_KEY.search(stderr) or _CHANGED.search(stderr))


def translate(done: Outcome, target: str, host: str, port: int) -> tuple[str, str]:
    """(what happened, what to do) for a command that gave no answer."""
    said = _last_words(done)
    if done.status == SSH_FAILED:
        return _of_ssh(done.stderr, target, host, port, said)
    if re.search(r"^sudo: ", done.stderr, flags=re.MULTILINE):
        return (f"{target}: sudo will not run it without a password: {said}",
                "allow this user NOPASSWD, or come in as root (--ssh-user root, without --become)")
    if done.status == NOT_FOUND or "not found" in done.stderr:
        return f"{target}: there is no python3 on this machine ({said})", "install Python 3.11 or newer there"
    return f"{target}: the program there ended with {done.status}: {said}", "run it again with -v, and look at the machine"


def _of_ssh(stderr: str, target: str, host: str, port: int, said: str) -> tuple[str, str]:
    place = host if port == 22 else f"[{host}]:{port}"
    if _CHANGED.search(stderr):
        return (f"{target}: its host key is another than the one that is known: this may be another machine",
                f"if it was reinstalled, remove the old key (ssh-keygen -R '{place}') and give the new one with --host-key")
    if _NO_KEY.search(stderr):
        return (f"{target}: its host key is not known here, so it may be any machine",
                "give its fingerprint with --host-key (on its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub), "
                "or --tofu to believe the key it shows now")
    for sign, happened, hint in _SAYINGS:
        if re.search(sign, stderr):
            return f"{target}: {happened}", hint
    return f"{target}: ssh failed: {said}", "try the same with ssh by hand"


def _last_words(done: Outcome) -> str:
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return " ".join(lines[-3:])[-300:] or "it said nothing"
