from __future__ import annotations

import io

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.terminal.lines import PipedLines, Typed, read_typed


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> list[Typed]:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    lines, found = PipedLines(), []
    while True:
        try:
            found.append(read_typed(lines))
        except EOFError:
            return found


def test_a_line_is_a_message_or_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = typed(monkeypatch, "Hi\n/help\n  spaces \nlast")
    assert [each.text for each in found] == ["Hi", "/help", "  spaces ", "last"]
    assert all(each.command for each in found)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ('"""\na\n\n  b\n"""\n', "a\n\n  b"),
        ('"""a\nb"""\n', "a\nb"),
        ('"""one line"""\n', "one line"),
        ('  """\n/help\n"""  \n', "/help"),
        ('""""""\n', ""),
        ('"""\n"""\n', ""),
        ('"""a "quoted" word""\nb\n"""\n', 'a "quoted" word""\nb'),
    ],
)
def test_a_block_is_one_message_and_no_command(
    text: str, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(monkeypatch, text) == [Typed(block, command=False)]


def test_a_block_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="has no end"):
        typed(monkeypatch, '"""\nHi\n')


def test_pasted_lines_are_one_message_and_no_command() -> None:
    class Pasted:
        def read(self, prompt: str, *, kept: bool = True) -> str:
            del prompt, kept
            return "/clear\nthat is a shell's"

    assert read_typed(Pasted()) == Typed("/clear\nthat is a shell's", command=False)


@pytest.mark.parametrize("beginning", ["", '"""\n'])
def test_text_without_end_is_an_error(beginning: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = io.StringIO(beginning)

    class Endless:
        def readline(self, size: int) -> str:
            return first.readline() or "a" * size

    monkeypatch.setattr("sys.stdin", Endless())
    with pytest.raises(UsageError, match="a message of more than"):
        read_typed(PipedLines())


@pytest.mark.parametrize("typed", ["/exit\nHi", "/exit", "\ufeff/exit"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + typed))
    lines = PipedLines()
    first, _, rest = typed.partition("\n")
    assert read_typed(lines) == Typed(first, command=True)
    if rest:
        assert read_typed(lines) == Typed(rest, command=True)
    with pytest.raises(EOFError):
        read_typed(lines)
