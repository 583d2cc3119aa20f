from typing import Any

import pytest

from protocol.errors import InvalidRequest
from protocol.fields import boolean, integer, number, shown


def test_reads_what_is_given() -> None:
    fields = {"flag": True, "count": 3, "share": 0.5, "whole": 1}
    assert boolean(fields, "flag") is True
    assert integer(fields, "count", 0, 3) == 3
    assert number(fields, "share", 0, 1) == 0.5
    assert number(fields, "whole", 0, 1) == 1


@pytest.mark.parametrize("fields", [{}, {"x": None}])
def test_absent_and_null_are_the_same(fields: dict[str, Any]) -> None:
    assert boolean(fields, "x") is False
    assert boolean(fields, "x", True) is True
    assert integer(fields, "x", 0, 3) is None
    assert number(fields, "x", 0, 3) is None


@pytest.mark.parametrize("value", [-1, 4, 1.5, "2", True, [1], {"a": 1}])
def test_integer_out_of_range_or_of_another_type(value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        integer({"x": value}, "x", 0, 3)
    assert caught.value.message == f"'x' must be a whole number from 0 to 3, not {shown(value)}"
    assert caught.value.param == "x"


@pytest.mark.parametrize("value", [-0.1, 2.5, "2", True])
def test_number_out_of_range_or_of_another_type(value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"'x' must be a number from 0 to 2, not {shown(value)}"):
        number({"x": value}, "x", 0, 2)


def test_boolean_says_where_it_stands() -> None:
    with pytest.raises(InvalidRequest, match=r"'options\.x' must be true or false, not 1"):
        boolean({"x": 1}, "x", within="options.")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), ("a", '"a"'), ([], "[]"), ({}, "{}"), ([1], "a list"), ({"a": 1}, "an object"), (1.5, "1.5")],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_long_values_are_cut() -> None:
    assert len(shown("x" * 10_000)) < 100
