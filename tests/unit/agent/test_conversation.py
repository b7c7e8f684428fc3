"""When an agent tries again."""

from lib.agent.conversation import LONGEST_PAUSE_S, failures_after, longest_pause_s
from lib.base.errors import Blocked, Unavailable


def test_each_failure_doubles_the_pause_up_to_a_bound() -> None:
    failures, pauses = 0, []
    for _ in range(2000):
        failures = failures_after(failures, Unavailable("gone"))
        pauses.append(longest_pause_s(failures))
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert set(pauses[6:]) == {LONGEST_PAUSE_S}


def test_a_control_plane_that_has_restarted_is_greeted_again_within_a_second() -> None:
    assert longest_pause_s(failures_after(50, Blocked("say hello again"))) == 1.0
