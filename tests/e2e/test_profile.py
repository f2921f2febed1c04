"""`gemma4-chat --profile` here: every kernel of a prompt and of a token, and its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.runtime import Package, cli
from gemma4_compile.runtime.check.profile import profile
from gemma4_compile.runtime.library.native_library import NativeLibrary


def test_every_launch_of_a_token_is_timed_and_belongs_somewhere(tiny_package: Path) -> None:
    package = Package.open(tiny_package)
    prompt, token = profile(package, context_length=12)
    assert (prompt.step, token.step) == ("a prompt of 6 tokens", "a token after 6, of 5 such")
    assert 0 < token.wall_s < 60
    names = {one.kernel for one in token.kernels}
    library = NativeLibrary(package.library_path)
    assert all(library.linked_function(name) for name in names)
    for found in (prompt, token):
        assert all(one.seconds > 0 and one.places for one in found.kernels)
        lookups = {one.places for one in found.kernels if one.operator == "embedding"}
        assert lookups == {"input"}
    attention = [one for one in token.kernels if "attention" in one.operator]
    words = " ".join(one.places for one in attention).split()
    layers = {kind: 0 for kind in ("sliding", "full")}
    for count, kind in zip(words[::2], words[1::2], strict=True):
        layers[kind] += int(count)
    assert layers == {"sliding": 6, "full": 2}, "every layer of `tiny` is one of them"
    heads = [one for one in token.kernels if "output" in one.places]
    assert heads
    assert all(one.nbytes for one in heads)


@pytest.mark.parametrize(
    ("length", "message"),
    [(3, "a context of 3 tokens is too short"), (2**40, "context length: expected 1 to")],
)
def test_too_short_and_too_long_a_context_are_refused(
    tiny_package: Path, length: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        next(profile(Package.open(tiny_package), context_length=length))


def test_the_command_prints_tables_alone(
    tiny_package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([str(tiny_package), "--profile", "--context-length", "12", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a prompt of 6 tokens (by this computer's clock)\nkernel ")
    assert "\n\na token after 6, of 5 such (" in out
    assert out.count(" launches take ") == 2
    assert abi.DECODE not in out
