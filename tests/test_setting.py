"""A field with a `Setting` knows its type, default, choices and bounds, and fields without one stay ordinary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from setting import AUTO, Setting, check_fields, listed, settings_of

REGISTRY: dict[str, int] = {"b": 1}


def _more_names() -> list[str]:
    return ["z", "a"]


@dataclass(frozen=True)
class Base:
    rate: Annotated[float, Setting("A rate.", "a rate in [0, 1]", 0, 1)] = 0.5
    ordinary: int = 3


@dataclass(frozen=True, kw_only=True)
class Declared(Base):
    count: Annotated[int, Setting("A count.", "auto or a count >= 1", 1, 9, auto=True)]
    place: Annotated[Literal["here", "there"], Setting("A place.")] = "here"
    device: Annotated[Literal["cpu"], Setting("A device.", auto=True)] = "cpu"
    registered: Annotated[str, Setting("A registered name.", choices=REGISTRY)] = "b"
    computed: Annotated[str, Setting("A computed name.", choices=_more_names)] = "z"
    free: Annotated[int, Setting("Any number.")] = -5


FIELDS = settings_of(Declared)


def test_settings_are_in_order_and_those_of_the_base_come_first() -> None:
    assert list(FIELDS) == ["rate", "count", "place", "device", "registered", "computed", "free"]


def test_defaults_are_those_of_the_fields_unless_they_are_fitted_to_the_machine() -> None:
    assert [field.default for field in FIELDS.values()] == [0.5, AUTO, "here", AUTO, "b", "z", -5]


def test_choices_are_read_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [FIELDS[name].choices() for name in ("rate", "place", "device")] == [(), ("here", "there"), (AUTO, "cpu")]
    assert FIELDS["computed"].choices() == ("z", "a")
    monkeypatch.setitem(REGISTRY, "a", 2)
    assert FIELDS["registered"].choices() == ("a", "b")


def test_an_instance_is_checked_field_by_field() -> None:
    check_fields(Declared(count=3))
    for bad, name in (
        (Declared(count=0), "count"),
        (Declared(count=3, rate=2), "rate"),
        (Declared(count=3, place="x"), "place"),
    ):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"^{name}: wanted .*, got "):
            check_fields(bad)


def test_a_number_without_bounds_is_any_number() -> None:
    FIELDS["free"].check(-(10**30))
    with pytest.raises(ValueError, match="^free: wanted a whole number, got 0.5$"):
        FIELDS["free"].check(0.5)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("rate", "1e-1", 0.1), ("count", AUTO, AUTO), ("count", " 7 ", 7), ("count", "1.5", "1.5"), ("place", "7", "7")],
)
def test_a_text_becomes_a_value_of_its_type_or_stays(name: str, text: str, value: Any) -> None:
    assert FIELDS[name].parse(text) == value


def test_a_type_that_no_flag_has_is_refused() -> None:
    @dataclass(frozen=True)
    class Wrong:
        sizes: Annotated[tuple[int, ...], Setting("Sizes.")] = (1, 2)

    with pytest.raises(TypeError, match="^sizes: wanted a setting of type bool, int, float or str"):
        settings_of(Wrong)


def test_a_setting_without_a_default_is_refused() -> None:
    @dataclass(frozen=True)
    class Wrong:
        count: Annotated[int, Setting("A count.")]

    with pytest.raises(TypeError, match="^count: wanted a setting with a default"):
        settings_of(Wrong)


@pytest.mark.parametrize(
    ("names", "phrase"), [(["a"], "a"), (["a", "b"], "a or b"), (("a", "b", "c"), "a, b or c"), ({"a": 1, "b": 2}, "a or b")]
)
def test_names_are_listed_in_one_phrase(names: Iterable[str], phrase: str) -> None:
    assert listed(names) == phrase
    assert listed(names, "and") == phrase.replace(" or ", " and ")
