"""Tables that stay tables whatever is in them."""

import pytest

from lib.cli.render import Column, column, duration, plain, render_fields, render_table

COLUMNS = (column("id"), column("count", "N", right=True), column("why"))
ROWS = ({"id": "a", "count": 5, "why": "-"},
        {"id": "longer", "count": 120, "why": "because of this and of that, and for no other reason"})


def test_columns_are_aligned_and_no_line_ends_in_blanks() -> None:
    assert render_table([{"id": "a", "count": 5, "why": ""}, {"id": "longer", "count": 120, "why": "so"}], COLUMNS) == (
        "ID        N  WHY\n"
        "a         5\n"
        "longer  120  so\n")


def test_a_long_last_cell_is_wrapped_under_its_own_column() -> None:
    assert render_table(ROWS, COLUMNS, 45) == (
        "ID        N  WHY\n"
        "a         5  -\n"
        "longer  120  because of this and of that, and\n"
        "             for no other reason\n")


def test_without_a_terminal_a_row_is_a_line() -> None:
    assert len(render_table(ROWS, COLUMNS, None).splitlines()) == 3


def test_on_a_very_narrow_terminal_the_long_cell_stands_below() -> None:
    assert render_table(ROWS[1:], COLUMNS, 30).splitlines()[1:] == [
        "longer  120", "    because of this and of", "    that, and for no other", "    reason"]


def test_spare_columns_go_before_anything_is_squeezed_the_rightmost_first() -> None:
    columns = (column("id"), column("x", spare=True), column("y", spare=True), column("why"))
    row = {"id": "name", "x": "x" * 10, "y": "y" * 10, "why": "w" * 30}
    assert render_table([row], columns, 80).splitlines()[0].split() == ["ID", "X", "Y", "WHY"]
    assert render_table([row], columns, 45).splitlines()[0].split() == ["ID", "X", "WHY"]
    assert render_table([row], columns, 35).splitlines()[0].split() == ["ID", "WHY"]


def test_wide_characters_take_two_cells() -> None:
    lines = render_table([{"id": "東京", "why": "x"}, {"id": "abcd", "why": "y"}], (column("id"), column("why"))).splitlines()
    assert lines[1:] == ["東京  x", "abcd  y"]


def test_nothing_from_elsewhere_writes_to_the_terminal() -> None:
    assert plain("a\x1b[2Jb\r\nc\u202e") == "a?[2Jb? c?"


@pytest.mark.parametrize(("value", "text"), [
    (None, ""), (True, "yes"), (False, "no"), (0, "0"), (["a", 1], "a, 1"), ({"k": "v", "n": 2}, "k v, n 2"), ((), "")])
def test_values_are_said_in_words(value: object, text: str) -> None:
    assert plain(value) == text


def test_fields_leave_out_what_is_empty_and_indent_what_has_several_lines() -> None:
    assert render_fields([("id", "x"), ("none", ""), ("conditions", ["one", "two"]), ("count", 0)]) == (
        "id          x\n"
        "conditions  one\n"
        "            two\n"
        "count       0\n")


@pytest.mark.parametrize(("seconds", "text"), [(None, "never"), (0.4, "0 s"), (119, "119 s"), (180, "3 min"), (7200, "2 h"),
                                               (86400 * 3, "3 d")])
def test_ages_are_said_as_people_say_them(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_a_cell_may_be_anything_a_function_makes_of_the_row() -> None:
    assert render_table([{"a": 1, "b": 2}], (Column("SUM", lambda row: row["a"] + row["b"], right=True),)) == "SUM\n  3\n"
