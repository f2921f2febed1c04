"""Names that Windows refuses, as its documentation lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.system import names

DEVICES = ("CON", "prn", "Aux", "nul", "COM1", "lpt9", "com0", "CONIN$", "LPT\xb2")


def as_on_windows(path: Path) -> None:
    """`check_new_name` of another system than this one."""
    names.check_for_windows(path.parts[1:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ending", ["", ".txt", ".tar.gz", " .txt"])
def test_devices_have_their_names_with_any_ending(device: str, ending: str) -> None:
    assert "device" in (names.refusal_of_windows(device + ending) or "")


@pytest.mark.parametrize(
    "name", ["a:b", "what?", 'say "hi"', "a|b", "tab\tbed", "a*", "<a>", "a\\b"]
)
def test_letters_that_no_name_has(name: str) -> None:
    assert "in a name" in (names.refusal_of_windows(name) or "")


@pytest.mark.parametrize("name", ["package.", "package ", "a. ."])
def test_dots_and_spaces_at_the_end_would_be_dropped(name: str) -> None:
    assert "at the end" in (names.refusal_of_windows(name) or "")


@pytest.mark.parametrize(
    "name", ["tiny", "auxiliary", "console.txt", ".con", "com10", "nul-1", "a.nul", "..", ".", "é"]
)
def test_other_names_are_taken(name: str) -> None:
    assert names.refusal_of_windows(name) is None


def test_every_part_of_a_path_is_looked_at() -> None:
    names.check_for_windows(("Users", "me", "tiny-cpu"))
    with pytest.raises(OSError, match=r"`aux\.d` for a device"):
        names.check_for_windows(("Users", "aux.d", "tiny-cpu"))


def test_here_such_names_are_as_good_as_others() -> None:
    names.check_new_name(Path("/somewhere/aux/a:b."))
    assert names.length_hint(Path("a" * 300)) == ""


def test_long_paths_are_named_as_a_reason() -> None:
    assert names.length_hint_of_windows("C:\\" + "a" * 256) == ""
    assert "260 characters" in names.length_hint_of_windows("C:\\" + "a" * 257)
