"""Progress for people: lines in a log, a bar on a terminal."""

from __future__ import annotations

import pytest

from gemma4_compile.cli.terminal import ProgressLines, Terminal, duration

GB = 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lines_come_now_and_then_with_rate_and_time_left() -> None:
    said: list[str] = []
    clock = Clock()
    lines = ProgressLines("converting", 10 * GB, said.append, clock)
    lines.advance(0)
    for _ in range(20):  # 0.1 GB a second
        clock.now += 2
        lines.advance(GB // 5)
    assert said == [
        "converting: 1.00 of 10.00 GB, 100 MB/s, 1:30 left",
        "converting: 2.00 of 10.00 GB, 100 MB/s, 1:20 left",
        "converting: 3.00 of 10.00 GB, 100 MB/s, 1:10 left",
        "converting: 4.00 of 10.00 GB, 100 MB/s, 1:00 left",
    ]
    clock.now += 60
    lines.advance(6 * GB)
    lines.close()
    assert said[4:] == ["converting: 10.00 GB in 1:40, 100 MB/s"]


def test_what_was_there_before_is_no_speed() -> None:
    said: list[str] = []
    clock = Clock()
    lines = ProgressLines("converting", 10 * GB, said.append, clock)
    lines.advance(8 * GB)
    clock.now += 10
    lines.advance(GB)
    assert said == ["converting: 9.00 of 10.00 GB, 100 MB/s, 0:10 left"]
    lines.advance(GB)
    lines.close()
    assert said[1:] == ["converting: 2.00 GB in 0:10, 200 MB/s"]


def test_nothing_done_has_no_time_left() -> None:
    said: list[str] = []
    clock = Clock()
    lines = ProgressLines("converting", GB, said.append, clock)
    lines.advance(0)
    clock.now += 11
    lines.advance(0)
    assert said == ["converting: 0.00 of 1.00 GB, 0 MB/s"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3725, "1:02:05")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_log_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal().progress("converting", GB) as advance:
        advance(0)
        advance(GB)
    assert capsys.readouterr().err == "converting\n"  # no more of what is done at once


def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Terminal().progress("converting", GB) as advance:
        advance(GB // 2)
        advance(GB // 2)
    text = capsys.readouterr().err
    assert "converting: 100%" in text
    assert "1.00G/1.00G" in text
