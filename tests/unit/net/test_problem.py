"""An error is the same error on the other side of the wire."""

import json

import pytest

from lib.base.errors import Blocked, ConfigError, Fault, LlmgwError, NotFound, Refused, UnknownOutcome, UsageError
from lib.net.problem import parse_problem, render_problem


@pytest.mark.parametrize("kind", [UsageError, NotFound, Refused, Blocked, UnknownOutcome, LlmgwError])
def test_an_error_keeps_class_message_hint_and_status(kind: type[LlmgwError]) -> None:
    err = kind("no node 'x'", hint="llmgw ctl nodes lists them")
    back = parse_problem(err.status, json.loads(json.dumps(render_problem(err))), "GET https://a:1/x")
    assert (type(back), str(back), back.hint) == (kind, str(err), err.hint)
    assert (back.status, back.exit_code) == (err.status, err.exit_code)


def test_a_refused_configuration_keeps_every_fault() -> None:
    faults = (Fault("catalog.toml", 3, "models.a", "unknown key", "did you mean b?"), Fault("catalog.toml", 0, "", "is empty"))
    back = parse_problem(400, json.loads(json.dumps(render_problem(ConfigError(faults)))), "here")
    assert isinstance(back, ConfigError)
    assert back.faults == faults


def test_a_class_unknown_here_is_judged_by_its_status() -> None:
    back = parse_problem(409, {"error": {"message": "say hello again", "type": "StaleSession", "more": 1}}, "here")
    assert (type(back), str(back)) == (Blocked, "say hello again")


def test_a_status_of_its_own_is_kept_for_those_who_look() -> None:
    back = parse_problem(426, {"error": {"message": "speak protocol 2", "type": "Refused"}}, "here")
    assert (type(back), back.status) == (Refused, 426)
    assert Refused("another").status == 403


@pytest.mark.parametrize("answer", [None, [], "no", {}, {"error": "bad gateway"}, {"error": None}])
def test_an_answer_that_gives_no_reason_is_named_with_its_place(answer: object) -> None:
    back = parse_problem(502, answer, "GET https://a:1/x")
    assert str(back) == "GET https://a:1/x answered 502 without saying why"


def test_faults_that_are_damaged_do_not_hide_the_message() -> None:
    problem = {"message": "bad catalog", "type": "UsageError", "faults": ["x", {"file": "a"}, 3]}
    back = parse_problem(400, {"error": problem}, "here")
    assert str(back) == "bad catalog"
