"""Who a certificate says its holder is: exactly one name, one URI, and both the same; or nobody."""

from typing import Any

import pytest

from lib.base.errors import Refused
from lib.model.identity import Identity, Role, identity_of


def peer(*, names: tuple[str, ...] = ("llmgw-node01",), uris: tuple[str, ...] = ("llmgw://demo/node/llmgw-node01",),
         serial: str = "0AB3") -> dict[str, Any]:
    """As ssl.SSLSocket.getpeercert() gives it."""
    return {"subject": tuple((("commonName", name),) for name in names), "serialNumber": serial,
            "subjectAltName": (*(("URI", uri) for uri in uris), ("DNS", "a.demo.internal"), ("IP Address", "10.0.0.1"))}


@pytest.mark.parametrize("role", list(Role))
def test_every_role_is_read_from_the_uri(role: Role) -> None:
    proved = identity_of(peer(names=("a1",), uris=(f"llmgw://demo/{role}/a1",)))
    assert proved == Identity("demo", role, "a1", "ab3")
    assert proved.uri == f"llmgw://demo/{role}/a1"
    assert str(proved) == f"{role} a1"


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_certificate_is_nobody(nothing: dict[str, Any] | None) -> None:
    with pytest.raises(Refused, match="no client certificate"):
        identity_of(nothing)


@pytest.mark.parametrize("names, uris", [
    ((), ("llmgw://demo/node/a",)), (("a", "b"), ("llmgw://demo/node/a",)), (("a", "a"), ("llmgw://demo/node/a",)),
    (("a",), ()), (("a",), ("llmgw://demo/node/a", "llmgw://demo/operator/a"))])
def test_more_or_less_than_one_name_and_one_uri_is_nobody(names: tuple[str, ...], uris: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match=f"{len(names)} common names and {len(uris)} URIs"):
        identity_of(peer(names=names, uris=uris))


@pytest.mark.parametrize("name, uri", [
    ("a", "llmgw://demo/node/b"), ("a", "llmgw://demo/root/a"), ("a", "llmgw://demo/node/a/"), ("a", "https://demo/node/a"),
    ("a", "llmgw://demo/node/a?x"), ("a", "llmgw://demo//node/a"), ("a", "llmgw:///node/a"), ("a", "LLMGW://demo/node/a"),
    ("A", "llmgw://demo/node/A"), ("a\n", "llmgw://demo/node/a\n"), ("a", "llmgw://demo/node/a\n"), ("", "llmgw://demo/node/"),
    ("a", "x llmgw://demo/node/a"), ("а", "llmgw://demo/node/а")])
def test_a_uri_that_is_not_exactly_an_identity_is_nobody(name: str, uri: str) -> None:
    with pytest.raises(Refused, match="is not an identity of an llmgw cluster"):
        identity_of(peer(names=(name,), uris=(uri,)))


def test_what_a_stranger_wrote_into_a_name_cannot_forge_a_log_line() -> None:
    with pytest.raises(Refused) as caught:
        identity_of(peer(names=("a\nnode b accepted",), uris=("llmgw://demo/node/a",)))
    assert "\n" not in str(caught.value)


def test_serials_compare_however_they_were_written() -> None:
    assert identity_of(peer(serial="00AbC")).serial == identity_of(peer(serial="0ABC")).serial == "abc"
