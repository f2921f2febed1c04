"""The fields of a command's options, and which of them were given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options.command import (
    Command,
    CommandOptions,
    Group,
    argument,
    given,
    option,
)
from gemma4_compile.options.process import path

ONE_OF = Group(is_exclusive=True)


@dataclass(frozen=True, kw_only=True)
class Base(CommandOptions):
    place: Path = argument("PLACE", "where", path)  # noqa: RUF009
    share: float | None = option(None, "--share S", "how much")


@dataclass(frozen=True, kw_only=True)
class Mine(Base):
    names: tuple[str, ...] = option((), "-n --names NAME", "which", action="append")
    left: bool = ONE_OF.switch("--left", "to the left")
    right: bool = ONE_OF.switch("--right", "to the right")


COMMAND = Command("mine", "Does nothing.", Mine)


def test_fields_have_the_type_that_they_say() -> None:
    assert COMMAND.parse(["here"]) == Mine(place=Path("here"))
    found = COMMAND.parse(["here", "--share", "0.5", "-n", "a", "--names", "b", "--debug"])
    assert found == Mine(place=Path("here"), share=0.5, names=("a", "b"), debug=True)


def test_what_is_given_is_named_as_it_is_written() -> None:
    options = COMMAND.parse(["here", "--right", "-n", "a", "--share=0"])
    assert given(options, all_but=["place"]) == ["--share", "-n", "--right"]
    assert given(options, ["right", "left", "names"]) == ["--right", "-n"], "in this order"
    assert given(COMMAND.parse(["here"])) == ["PLACE"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "required: PLACE"),
        ([""], "the name is empty"),
        (["x", "--share", "half"], "invalid float value"),
        (["x", "--left", "--right"], "not allowed with"),
    ],
)
def test_wrong_ones_are_errors_of_usage(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=said):
        COMMAND.parse(argv)
    assert COMMAND.main(lambda _: pytest.fail("it began"), argv) == 2
    assert said in capsys.readouterr().err


def test_options_of_a_base_come_first_in_the_help() -> None:
    shown = COMMAND.make_parser().format_help()
    assert shown.index("--share S") < shown.index("-n NAME") < shown.index("[--left | --right]")
