"""What is shown; test_cli.py runs the commands that show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.runtime import Reply
from gemma4_compile.runtime.engine.generation import FinishReason
from gemma4_compile.runtime.reply.reply import ReasoningDelta, TextDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.terminal.console import Console, speed

PARTS: list[TextDelta | ReasoningDelta | ToolCall] = [
    ReasoningDelta("hm, "),
    ReasoningDelta("yes"),
    TextDelta("It "),
    TextDelta("is."),
]


def show(console: Console, parts: list[TextDelta | ReasoningDelta | ToolCall]) -> None:
    thinking = False
    for part in parts:
        thinking = console._show(part, thinking)


@pytest.mark.parametrize(
    ("terminal", "colour", "shown"),
    [
        (True, "", "\x1b[2mhm, yes\x1b[0m\n"),
        (True, "1", "hm, yes\n"),
        (False, "", "hm, yes\n"),
    ],
)
def test_reasoning_is_dimmed_on_a_terminal_that_may_be_styled(
    terminal: bool,
    colour: str,
    shown: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", colour)
    show(Console(), [*PARTS])
    assert capsys.readouterr() == ("It is.", shown)


def test_a_call_is_shown_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    show(Console(), [ToolCall("weather", {"city": "Rome"})])
    assert capsys.readouterr().out == '[weather {"city": "Rome"}]'


def test_loading_is_reported_at_its_end_and_a_quiet_console_prints_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for quiet in (False, True):
        with Console(quiet=quiet).loading(Path("package"), "cuda") as progress:
            progress(1_000_000, 2_500_000)
            progress(2_500_000, 2_500_000)
        err = capsys.readouterr().err
        assert err.startswith("loaded package (cuda, 2.5 MB of weights) in ") is not quiet
        assert err == "" or not quiet


@pytest.mark.parametrize(
    ("seconds", "hashed", "quiet", "told"),
    [
        (9.0, True, False, "checked package (2.5 MB) in 9.0 s; not again until it changes\n"),
        (9.0, True, True, ""),
        (9.0, False, False, ""),
        (0.1, True, False, ""),
    ],
)
def test_a_long_check_is_told(
    seconds: float,
    hashed: bool,
    quiet: bool,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([10.0, 10.0 + seconds])
    monkeypatch.setattr(
        "gemma4_compile.runtime.terminal.console.time.perf_counter", lambda: next(clock)
    )
    with Console(quiet=quiet).checking(Path("package")) as progress:
        if hashed:
            progress(2_500_000, 2_500_000)
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("width", [80, 120])
def test_a_check_is_a_bar_on_a_terminal_if_it_takes_a_while(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    clock = [10.0]
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    monkeypatch.setenv("COLUMNS", str(width))
    with Console().checking(Path("package")) as progress:
        progress(1_000_000, 2_500_000)
        assert capsys.readouterr().err == ""
        clock[0] += 1
        progress(2_000_000, 2_500_000)
        assert "checking package:  80%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tokens", "reason", "expected"),
    [
        (0, "stop", "[0 tokens; prompt of 9, 4 of them known]"),
        (1, "stop", "[1 token, first after 0.25 s; prompt of 9, 4 of them known]"),
        (
            3,
            "length",
            "[3 tokens, first after 0.25 s, then 12.5 tok/s, ended by --max-tokens; "
            "prompt of 9, 4 of them known]",
        ),
    ],
)
def test_one_line_shows_how_fast_it_was(tokens: int, reason: FinishReason, expected: str) -> None:
    reply = Reply(
        text="x",
        token_ids=(7,) * tokens,
        finish_reason=reason,
        prompt_tokens=9,
        reused_tokens=4,
        first_token_s=0.25,
        tokens_per_s=12.5 if tokens > 1 else 0.0,
    )
    assert speed(reply) == expected


def test_a_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console, name = Console(), Path("a\x1b[2J\nerror: \u202eb\udcff")
    with console.loading(name, "cpu"):
        pass
    with console.checking(name) as progress:
        progress(1, 1)
    console.note(f"model {name}")
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "\u202e" not in err
    assert r"loaded a\x1b[2J\nerror: \u202eb\udcff (cpu" in err


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_cannot_steer_the_terminal(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    said = "a\x1b]0;title\x07\x9b2J\n\tü👩\u200d🔬"
    show(Console(), [ReasoningDelta(said), TextDelta(said), ToolCall("f", {"a": said})])
    for text in capsys.readouterr():
        assert ("\x1b" in text) is not terminal
        assert "\n\tü👩\u200d🔬" in text
