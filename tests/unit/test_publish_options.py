"""Options that publish: what goes together, before anything is read or uploaded."""

from __future__ import annotations

import pytest

from gemma4_compile import options
from gemma4_compile.errors import UsageError


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
        options.check(options.make_parser().parse_args(given))


@pytest.mark.parametrize(
    "given",
    [
        ["--publish", "a/b", "--from", "out", "--public", "--license-file", "x", "--debug"],
        ["tiny", "-o", "out", "--publish", "a/b", "--public"],
    ],
)
def test_what_fits_together_is_taken(given: list[str]) -> None:
    options.check(options.make_parser().parse_args(given))
