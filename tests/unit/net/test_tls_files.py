"""A certificate, key or authority file that is wrong is refused in one line that names it and the remedy."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from lib.base.errors import ConfigError
from lib.net.tls import NO_CHECK_TIME, client_context, date_fault, expires_s, server_context
from lib.pki.authority import new_key_and_csr
from tests.certificates import Certificates, Pair


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Certificates(tmp_path).node()


def refusal(pair: Pair) -> str:
    """What both kinds of context say of these files, which has to be the same."""
    said = []
    for make in (server_context, client_context):
        with pytest.raises(ConfigError) as caught:
            make(pair.cert, pair.key, pair.ca)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


@pytest.mark.parametrize("name", ["cert", "key", "ca"])
def test_a_missing_file_is_named(pair: Pair, name: str) -> None:
    getattr(pair, name).unlink()
    assert refusal(pair) == f"{getattr(pair, name)}: cannot be read: No such file or directory"


@pytest.mark.parametrize("name, what", [("cert", "certificate"), ("key", "private key"), ("ca", "certificate")])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_half_written_file_is_named(pair: Pair, name: str, what: str, share: float) -> None:
    file: Path = getattr(pair, name)
    text = file.read_text()
    file.write_text(text[: int(len(text) * share)])
    assert refusal(pair).startswith(f"{file}: holds no whole PEM {what}")


@pytest.mark.parametrize("name", ["cert", "ca"])
def test_a_second_certificate_that_is_cut_off_is_not_passed_over(pair: Pair, name: str) -> None:
    file: Path = getattr(pair, name)
    file.write_text(file.read_text() + file.read_text()[:200])
    assert refusal(pair).startswith(f"{file}: is damaged after 1 PEM block(s)")


@pytest.mark.parametrize("name, what", [("cert", "certificate"), ("key", "private key"), ("ca", "certificate")])
def test_damage_inside_the_frame_is_named(pair: Pair, name: str, what: str) -> None:
    file: Path = getattr(pair, name)
    first, *lines, last = file.read_text().strip().split("\n")
    file.write_text("\n".join([first, *reversed(lines), last]) + "\n")
    assert refusal(pair).startswith(f"{file}: holds no readable {what}")


def test_certificate_and_key_in_each_others_place_are_both_named(pair: Pair) -> None:
    swapped = Pair(pair.key, pair.cert, pair.ca)
    pair.cert.chmod(0o600)
    assert refusal(swapped).split("\n")[0].startswith(f"{pair.key}: holds no whole PEM certificate")
    assert refusal(swapped).split("\n")[1].startswith(f"{pair.cert}: holds no whole PEM private key")


def test_the_key_of_another_certificate_is_refused(pair: Pair) -> None:
    pair.key.write_text(new_key_and_csr("another")[0])
    assert refusal(pair).startswith(f"{pair.key}: is not the key of {pair.cert}")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_that_others_can_read_is_refused_with_the_remedy(pair: Pair, mode: int) -> None:
    pair.key.chmod(mode)
    assert refusal(pair) == f"{pair.key}: is open to others (mode {mode:04o}) (chmod 600 {pair.key})"


def test_a_key_under_a_passphrase_is_refused_without_asking_anybody(pair: Pair) -> None:
    pair.key.write_text(new_key_and_csr("a", b"secret")[0])
    assert refusal(pair).startswith(f"{pair.key}: is protected by a passphrase")


def test_what_is_not_text_is_refused(pair: Pair) -> None:
    pair.cert.write_bytes(b"\x30\x82\xff\xfe")
    assert refusal(pair) == f"{pair.cert}: is not UTF-8 text"


def test_text_around_the_certificate_does_no_harm(pair: Pair) -> None:
    pair.cert.write_text(f"# node 1\n{pair.cert.read_text()}\n# end\n".replace("\n", "\r\n"))
    server_context(pair.cert, pair.key, pair.ca)


def test_the_two_contexts_never_resume_and_a_client_may_be_anonymous(pair: Pair) -> None:
    assert server_context(pair.cert, pair.key, pair.ca).num_tickets == 0
    assert client_context(None, None, pair.ca).certificate == ""


def test_dates_are_left_to_us_where_that_is_asked(pair: Pair) -> None:
    assert server_context(pair.cert, pair.key, pair.ca, ignore_dates=True).verify_flags & NO_CHECK_TIME
    assert not server_context(pair.cert, pair.key, pair.ca).verify_flags & NO_CHECK_TIME


PEER = {"notBefore": "Jan  1 00:00:00 2026 GMT", "notAfter": "Apr  1 00:00:00 2026 GMT"}
BEGIN, END = (datetime(2026, month, 1, tzinfo=UTC).timestamp() for month in (1, 4))


@pytest.mark.parametrize("now, says", [
    (BEGIN, ""), (END, ""), (BEGIN - 299, ""), (END + 299, ""),
    (BEGIN - 301, "certificate is not valid before Jan  1 00:00:00 2026 GMT"),
    (END + 301, "certificate expired on Apr  1 00:00:00 2026 GMT")])
def test_dates_are_judged_with_five_minutes_of_leeway(now: float, says: str) -> None:
    assert date_fault(PEER, now) == says


def test_the_end_of_a_certificate_is_a_time_that_can_be_compared() -> None:
    assert expires_s(PEER) == END
