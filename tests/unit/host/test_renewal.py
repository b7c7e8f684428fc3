"""A pair of files that is renewed: whole at every moment, under the same two names, whatever goes wrong."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from lib.base.errors import LlmgwError, Refused
from lib.host.openssl import parse_dates, read_dates
from lib.host.renewal import PairFiles, Renewer, Terms
from lib.pki.authority import Authority, new_key_and_csr
from tests.certificates import Certificates

ALWAYS, NEVER = Terms(lambda *_: 0.0, lambda *_: 0.0), Terms(lambda *_: float("inf"), lambda *_: 0.0)


class Place:
    """A node's pair on disk, and the authority that renews it."""

    def __init__(self, directory: Path) -> None:
        certificates = Certificates(directory)
        self.pair, self.authority = certificates.node(), certificates.authority
        self.files = PairFiles(self.pair.cert, self.pair.key)

    def sign(self, csr: str) -> str:
        return self.authority.issue(csr, "node", "llmgw-node01", addresses=["127.0.0.1"], days=30).pem

    def renewer(self, ask: Callable[[str], str] | None = None, terms: Terms = ALWAYS) -> Renewer:
        return Renewer(self.files, "llmgw-node01", ask or self.sign, terms)

    def check(self) -> str:
        """The certificate's text, once its key was found to fit."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(self.pair.cert, self.pair.key)
        return self.pair.cert.read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_renewed_pair_has_a_new_key_and_the_old_names(place: Place) -> None:
    before, key = place.check(), place.pair.key.read_text()
    assert place.renewer().look()
    assert place.check() != before
    assert place.pair.key.read_text() != key
    assert os.stat(place.pair.key).st_mode & 0o777 == 0o600
    days = (read_dates(place.pair.cert)[1] - read_dates(place.pair.cert)[0]) / 86400
    assert days == pytest.approx(30, abs=0.1)


def test_what_is_not_due_is_left_alone_and_what_somebody_else_replaced_is_noticed(place: Place) -> None:
    renewer = place.renewer(terms=NEVER)
    assert not renewer.look()
    text = place.check()
    place.pair.cert.unlink()
    place.pair.cert.write_text(text)
    assert renewer.look()
    assert not renewer.look()


def test_many_renewals_leave_two_pairs_and_no_rubbish(place: Place, tmp_path: Path) -> None:
    seen = {place.check()}
    for _ in range(4):
        assert place.renewer().look()
        seen.add(place.check())
    assert len(seen) == 5
    home = place.pair.cert.with_name(place.pair.cert.name + ".d")
    assert len(list(home.glob("pair-*"))) == 2
    assert not list(tmp_path.glob(".*.new"))


def refuse(_csr: str) -> str:
    raise Refused("this control plane cannot renew certificates", hint="do it by hand")


@pytest.mark.parametrize("answer", [refuse, lambda _: "no certificate", lambda _: ""])
def test_a_renewal_that_fails_leaves_the_pair_as_it_is_and_is_said_once(
        place: Place, answer: Callable[[str], str], caplog: pytest.LogCaptureFixture) -> None:
    before, renewer = place.check(), place.renewer(answer)
    assert not renewer.look()
    assert not renewer.look()
    assert place.check() == before
    assert len([line for line in caplog.messages if "is not renewed" in line]) == 1
    assert not list(place.pair.cert.with_name(place.pair.cert.name + ".d").glob("pair-*"))


def test_a_certificate_for_another_key_is_not_put_in_place(place: Place, tmp_path: Path) -> None:
    stranger = Authority.create(tmp_path / "elsewhere", "demo")
    wrong = stranger.issue(new_key_and_csr("llmgw-node01")[1], "node", "llmgw-node01", addresses=["127.0.0.1"], days=1).pem
    before = place.check()
    assert not place.renewer(lambda _: wrong).look()
    assert place.check() == before


class _Power(Exception):
    """The moment the machine dies."""


@pytest.mark.parametrize("step", range(12))
def test_a_crash_at_any_moment_of_the_swap_leaves_a_pair_that_fits(
        place: Place, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, replace = [0], os.replace

    def fragile(source: "os.PathLike[str]", target: "os.PathLike[str]") -> None:
        calls[0] += 1
        if calls[0] > step:
            raise _Power
        replace(source, target)
    monkeypatch.setattr(os, "replace", fragile)
    try:
        place.renewer().look()
    except _Power:
        place.check()
    monkeypatch.setattr(os, "replace", replace)
    before = place.check()
    assert place.renewer().look()                          # and the next try works, whatever was left behind
    assert place.check() != before


def test_a_pair_put_in_place_by_hand_over_the_links_is_taken_as_it_is(place: Place) -> None:
    place.renewer().look()
    elsewhere = place.pair.cert.parent / "elsewhere"
    elsewhere.mkdir()
    other = Certificates(elsewhere).node()
    for source, target in ((other.cert, place.pair.cert), (other.key, place.pair.key)):
        beside = target.with_name("new")
        beside.write_text(source.read_text())
        beside.chmod(0o600)
        os.replace(beside, target)
    assert place.check() == other.cert.read_text()
    assert place.renewer().look()
    assert place.check() != other.cert.read_text()


def test_dates_are_read_from_what_openssl_says() -> None:
    assert parse_dates("notBefore=Jan  1 00:00:00 2026 GMT\nnotAfter=Apr  1 00:00:00 2026 GMT\n") == (1767225600.0, 1775001600.0)
    with pytest.raises(LlmgwError, match="no dates"):
        parse_dates("unable to load certificate")
