"""Options that publish: what goes together, before anything is read or uploaded."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options.compile import COMMAND


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["tiny", "-o", "out", "--from", "out"], "--from goes with --publish"),
        (["tiny", "-o", "out", "--public"], "--public goes with --publish"),
        (["tiny", "-o", "out", "--license-file", "x"], "--license-file goes with --publish"),
        (["tiny", "--plan", "--publish", "a/b"], "needs a whole package, and --plan"),
        (["tiny", "-o", "x", "--only", "weights", "--publish", "a/b"], "and --only"),
        (["--rebuild", "x", "--publish", "a/b"], "--publish"),
        (["tiny", "--publish", "a/b", "--from", "out"], "MODEL would compile one"),
        (["--publish", "a/b", "--from", "out", "--quant", "f32"], "--quant would compile one"),
        (["--publish", "a/b", "--from", "out", "-o", "x"], "-o would compile one"),
        (["tiny", "--publish", "a/b"], "-o/--output"),
    ],
)
def test_what_does_not_fit_together_is_told(given: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        COMMAND.parse(given)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25MiB", 25 << 20),
        ("25 mib", 25 << 20),
        ("100MB", 10**8),
        ("1GiB", 1 << 30),
        ("65536", 65536),
        ("512KiB", 512 << 10),
    ],
)
def test_sizes_have_units(text: str, expected: int) -> None:
    given = ["tiny", "-o", "out", "--shard-size", text]
    assert COMMAND.parse(given).shard_size == expected


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1.5MiB", "25TiB", "1KiB", "9" * 40, "0"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        COMMAND.parse(["tiny", "-o", "out", f"--shard-size={text}"])


@pytest.mark.parametrize(
    "given",
    [
        ["--publish", "a/b", "--from", "out", "--public", "--license-file", "x", "--debug"],
        ["tiny", "-o", "out", "--publish", "a/b", "--public"],
    ],
)
def test_what_fits_together_is_taken(given: list[str]) -> None:
    COMMAND.parse(given)
