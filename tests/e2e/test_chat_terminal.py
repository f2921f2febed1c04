"""`gemma4-chat` in a terminal of its own: pasted lines, blocks, Ctrl-C, Ctrl-D, history."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.commands import CHAT

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

PATIENCE_S = 120
READY = b"\x1b[?2004h"  # the prompt asks the terminal to mark what is pasted
WHERE = b"\x1b[6n"  # it asks where the cursor is
PASTED, PASTED_END = b"\x1b[200~", b"\x1b[201~"
UP, CTRL_C, CTRL_D, ENTER = b"\x1b[A", b"\x03", b"\x04", b"\r"


class Screen:
    """A person in front of a terminal."""

    def __init__(self, process: int, descriptor: int) -> None:
        self.process, self._descriptor = process, descriptor
        self.shown, self._seen = b"", 0

    def wait_for(self, text: bytes) -> None:
        """Wait until something is shown, after what was waited for before."""
        end = time.monotonic() + PATIENCE_S
        while text not in self.shown[self._seen :]:
            assert time.monotonic() < end, self.shown.decode(errors="replace")
            if not select.select([self._descriptor], [], [], 1)[0]:
                continue
            piece = os.read(self._descriptor, 65536)
            self.shown += piece
            if WHERE in piece:
                self.type(b"\x1b[1;1R")
        self._seen = self.shown.index(text, self._seen) + len(text)

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def leave(self) -> int:
        """Wait for the end; return the exit status."""
        with suppress(OSError):  # Linux says so when the other side is closed
            while True:
                self.wait_for(b"\0")
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@contextmanager
def terminal(package: Path, state: Path, *options: str) -> Iterator[Screen]:
    command = [*CHAT, str(package), "--greedy"]
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm"}
    process, descriptor = pty.fork()
    if process == 0:
        os.execve(command[0], [*command, *options], environment)
    screen = Screen(process, descriptor)
    try:
        screen.wait_for(READY)
        yield screen
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        os.close(descriptor)


def kept(state: Path) -> list[str]:
    path = state / "gemma4-compile" / "chat-history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_pasted_lines_are_one_message_and_come_back(tiny_package: Path, tmp_path: Path) -> None:
    state, saved = tmp_path / "state", tmp_path / "chat.json"
    with terminal(tiny_package, state) as screen:
        screen.type(PASTED + b"Which is larger,\n43 or 20?" + PASTED_END)
        screen.wait_for(b"43 or 20?")  # and nothing is sent yet
        screen.type(ENTER)
        screen.wait_for(b"tok/s")
        screen.wait_for(READY)
        screen.type(b'"""' + ENTER)
        screen.wait_for(READY)
        screen.type(b"Who are" + ENTER)
        screen.wait_for(READY)
        screen.type(b'you?"""' + ENTER)
        screen.wait_for(b"tok/s")
        screen.wait_for(READY)
        screen.type(f"/save {saved}".encode() + ENTER)
        screen.wait_for(b"saved 4 messages")
        screen.wait_for(READY)
        screen.type(CTRL_D)
        assert screen.leave() == 0
    questions = [message["content"] for message in json.loads(saved.read_text())["messages"][::2]]
    assert questions == ["Which is larger,\n43 or 20?", "Who are\nyou?"]
    assert kept(state) == ["Which is larger,\n43 or 20?", f"/save {saved}"]
    with terminal(tiny_package, state) as screen:
        screen.type(UP)
        screen.wait_for(b"/save")
        screen.type(UP)
        screen.wait_for(b"43 or 20?")
        screen.type(ENTER)
        screen.wait_for(b"tok/s")
        screen.wait_for(READY)
        screen.type(b"/exit" + ENTER)
        assert screen.leave() == 0


def test_ctrl_c_asks_twice_and_clears_the_line(tiny_package: Path, tmp_path: Path) -> None:
    with terminal(tiny_package, tmp_path, "--no-history") as screen:
        screen.type(b"nonsense")
        screen.wait_for(b"nonsense")
        screen.type(CTRL_C)
        screen.wait_for(b"(Ctrl-C again leaves")
        screen.wait_for(READY)
        screen.type(b"Who are you?" + ENTER)
        screen.wait_for(b"I am tiny")  # and not what was cleared
        screen.wait_for(READY)
        screen.type(CTRL_C)
        screen.wait_for(b"(Ctrl-C again leaves")
        screen.wait_for(READY)
        screen.type(CTRL_C)
        assert screen.leave() == 130
    assert b"Traceback" not in screen.shown
    assert not [*tmp_path.iterdir()]  # no history


def test_without_a_terminal_there_is_no_prompt_and_no_history(
    tiny_package: Path, tmp_path: Path
) -> None:
    command = [*CHAT, str(tiny_package), "--greedy"]
    done = subprocess.run(
        command,
        input=b'"""\nWhich is larger,\n43 or 20?\n"""\n',
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        check=True,
    )
    assert re.fullmatch(rb"43 is larger than 20\.\n", done.stdout)
    assert b"\x1b" not in done.stdout + done.stderr
    assert not [*tmp_path.iterdir()]
