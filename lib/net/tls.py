"""TLS 1.3 contexts out of PEM files, and TLS failures in words a person can act on.

Room: net. Knows nothing of llmgw: who a certificate belongs to is judged elsewhere. Nothing is resumed (no tickets, no
session cache), because a resumed session skips the verification of the peer.
"""

import os
import re
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.base.errors import ConfigError, Fault, bad_config
from lib.base.files import read_text

PeerCert = Mapping[str, Any]               # what ssl.SSLSocket.getpeercert() gives

NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME; the ssl module has no name for it
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----\s[A-Za-z0-9+/=\s]+-----END \1-----")
_NOT_SIGNED = (2, 18, 19, 20, 21)          # X509_V_ERR_*: no issuer found, or a self-signed one that is not ours
_VERIFY_WORDS = {
    7: "has a signature that does not fit its authority",
    9: "is not valid yet (compare the clocks of both machines)",
    10: "has expired",
    26: "was not issued for this use",
    47: "carries a name or address that its authority may not sign",
    62: "is for another host name",
    64: "is for another address",
}
_CERTIFICATE_ALERTS = ("UNKNOWN_CA", "CERTIFICATE", "ACCESS_DENIED")
_REASON_WORDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "sent no certificate",
    "HTTP_REQUEST": "spoke plain HTTP to a TLS port",
    "WRONG_VERSION_NUMBER": "does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "does not speak TLS 1.3",
    "UNEXPECTED_EOF_WHILE_READING": "closed the connection during the handshake",
}


class TlsContext(ssl.SSLContext):
    """An SSLContext that remembers its files, so that a failure can name them."""

    certificate: str = ""
    ca: str = ""


def server_context(cert: Path, key: Path, ca: Path, *, client_certs: bool = True,
                   ignore_dates: bool = False) -> TlsContext:
    """For a listener. With `client_certs` nobody gets in without a certificate signed by `ca`."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, ca, ignore_dates)
    context.verify_mode = ssl.CERT_REQUIRED if client_certs else ssl.CERT_NONE
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    _load_identity(context, cert, key)
    return context


def client_context(cert: Path | None, key: Path | None, ca: Path, *, ignore_dates: bool = False) -> TlsContext:
    """For dialling: the server must be signed by `ca` and named as dialled. Without `cert` we stay anonymous."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, ca, ignore_dates)
    if cert and key:
        _load_identity(context, cert, key)
    return context


def date_fault(peer: PeerCert, now_s: float, *, leeway_s: float = 300.0, late_s: float = 0.0) -> str:
    """What is wrong with the dates of a peer's certificate at `now_s` (Unix time), or an empty string. It may be `late_s` past
    its end."""
    if now_s < begins_s(peer) - leeway_s:
        return f"certificate is not valid before {peer['notBefore']}"
    if now_s > expires_s(peer) + leeway_s + late_s:
        return f"certificate expired on {peer['notAfter']}"
    return ""


def begins_s(peer: PeerCert) -> float:
    """When a peer's certificate begins, in Unix time."""
    return float(ssl.cert_time_to_seconds(peer["notBefore"]))


def expires_s(peer: PeerCert) -> float:
    """When a peer's certificate ends, in Unix time."""
    return float(ssl.cert_time_to_seconds(peer["notAfter"]))


def certificate_fault(err: ssl.SSLCertVerificationError, ca: str) -> str:
    """Why we did not accept the other side's certificate, as the rest of a sentence that begins with "its certificate"."""
    if err.verify_code in _NOT_SIGNED:
        return f"is not signed by {ca}" if ca else "is not signed by our authority"
    return _VERIFY_WORDS.get(err.verify_code, f"is not good: {err.verify_message}")


def refused_certificate(err: ssl.SSLError) -> str:
    """The alert by which the other side refused our certificate, in words; empty where this is something else."""
    reason = err.reason or ""
    about_us = "ALERT" in reason and any(word in reason for word in _CERTIFICATE_ALERTS)
    return _plain(reason).removeprefix("alert: ") if about_us else ""


def handshake_fault(err: OSError, ca: str = "") -> str:
    """Why a handshake failed, as the rest of a sentence about the other side."""
    if isinstance(err, ssl.SSLCertVerificationError):
        return f"has a certificate that {certificate_fault(err, ca)}"
    if isinstance(err, ssl.SSLEOFError | ConnectionError):
        return "closed the connection during the handshake"
    if isinstance(err, TimeoutError):
        return "did not finish the handshake in time"
    if not isinstance(err, ssl.SSLError):
        return err.strerror or type(err).__name__
    if alert := refused_certificate(err):
        return f"refused our certificate: {alert}"
    return _REASON_WORDS.get(err.reason or "", _plain(err.reason or str(err)))


def _plain(reason: str) -> str:
    """OpenSSL's reason as words; the version before an alert is where its number was given out, not what was spoken."""
    return re.sub(r"^(ssl|tls)v[0-9]+ alert ", "alert: ", reason.lower().replace("_", " "))


def _context(protocol: int, ca: Path, ignore_dates: bool) -> TlsContext:
    _refuse(_pem_faults(ca, "CERTIFICATE"))
    context = TlsContext(protocol)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.ca = str(ca)
    if ignore_dates:
        context.verify_flags |= NO_CHECK_TIME
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError:
        raise _damaged(ca, "certificate") from None
    return context


def _load_identity(context: TlsContext, cert: Path, key: Path) -> None:
    """Load our own certificate. Refuses a pair of files that is damaged, does not fit together, or is open to others."""
    _refuse([*_pem_faults(cert, "CERTIFICATE"), *_pem_faults(key, "PRIVATE KEY"), *_mode_faults(key)])
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as err:
        if err.reason == "KEY_VALUES_MISMATCH":
            raise bad_config(str(key), f"is not the key of {cert}", hint="put back the pair that belongs together") from None
        raise _damaged(*((key, "private key") if _holds_certificate(cert) else (cert, "certificate"))) from None
    context.certificate = str(cert)


def _no_password() -> str:
    return ""                              # without this OpenSSL would ask on the terminal


def _holds_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return False
    return True


def _damaged(path: Path, what: str) -> ConfigError:
    return bad_config(str(path), f"holds no readable {what}", hint="put back an undamaged copy, or have it issued again")


def _refuse(faults: list[Fault]) -> None:
    if faults:
        raise ConfigError(faults)


def _pem_faults(path: Path, label: str) -> list[Fault]:
    """What is wrong with the frame of a PEM file: not there, something else, or cut off."""
    try:
        text = read_text(path)
    except ConfigError as err:
        return list(err.faults)
    labels = [block[1] for block in _BLOCK.finditer(text)]
    what = label.lower()
    if "ENCRYPTED PRIVATE KEY" in text or "Proc-Type: 4,ENCRYPTED" in text:
        return [Fault(str(path), 0, "", "is protected by a passphrase", f"store it without: openssl pkey -in {path}")]
    if not any(found.endswith(label) for found in labels):
        return [Fault(str(path), 0, "", f"holds no whole PEM {what}", "put back an undamaged copy, or have it issued again")]
    if text.count("-----BEGIN ") != len(labels):
        return [Fault(str(path), 0, "", f"is damaged after {len(labels)} PEM block(s)", "put back an undamaged copy")]
    return []


def _mode_faults(key: Path) -> list[Fault]:
    try:
        mode = stat.S_IMODE(os.stat(key).st_mode)
    except OSError:
        return []                          # that it cannot be read is said already
    return [Fault(str(key), 0, "", f"is open to others (mode {mode:04o})", f"chmod 600 {key}")] if mode & 0o077 else []
