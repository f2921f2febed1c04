"""How commands end, what they say then, and the memory that they say they took."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemma4_compile import __version__
from gemma4_compile.cli import compile as cli
from gemma4_compile.cli import verify as verify_cli
from gemma4_compile.errors import (
    ArtifactError,
    CheckpointError,
    Gemma4CompileError,
    TargetError,
    UsageError,
)
from gemma4_compile.options.command import Command, CommandOptions, option
from gemma4_compile.options.process import (
    DEBUG_HINT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_USAGE,
    MEMORY_HINT,
    warn,
    without_warnings,
)
from gemma4_compile.runtime import cli as chat_cli
from gemma4_compile.runtime import serve as serve_cli

COMMANDS = {
    "gemma4-compile": cli.main,
    "gemma4-chat": chat_cli.main,
    "gemma4-serve": serve_cli.main,
    "gemma4-verify": verify_cli.main,
}


@dataclass(frozen=True, kw_only=True)
class Counted(CommandOptions):
    count: int | None = option(None, "--count N", "how many")


def run(
    error: BaseException | Callable[[], object] | None, *argv: str, interrupted: str | None = None
) -> int:
    """Run a command that ends so."""

    def body(_: CommandOptions) -> None:
        if isinstance(error, BaseException):
            raise error
        if error is not None:
            error()

    hints: dict[type[Gemma4CompileError], str] = {ArtifactError: "mend it"}
    command = Command("a-command", "Does nothing.", Counted, hints=hints, interrupted=interrupted)
    return command.main(body, argv)


@pytest.mark.parametrize(
    ("error", "status", "hint"),
    [
        (UsageError("no\nsuch", hint="try\nyes"), EXIT_USAGE, "try yes"),
        (UsageError("no such"), EXIT_USAGE, "see a-command --help"),
        (ArtifactError("no such"), EXIT_FAILED, "mend it"),
        (ArtifactError("no such", hint="buy another"), EXIT_FAILED, "buy another"),
        (TargetError("no such"), EXIT_FAILED, DEBUG_HINT),
        (CheckpointError("no such"), EXIT_FAILED, "download the checkpoint again"),
    ],
)
def test_an_error_is_a_line_and_a_hint(
    error: Exception, status: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(error) == status
    assert capsys.readouterr().err == f"error: no such\nhint: {hint}\n"
    assert run(error, "--debug") == status
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith(f"error: no such\nhint: {hint}\n")


def test_a_fault_of_ours_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(ZeroDivisionError("x")) == EXIT_FAILED
    told = capsys.readouterr().err
    assert told == f"error: internal error: ZeroDivisionError: x\nhint: {DEBUG_HINT}\n"


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no room")])
def test_memory_that_runs_out_is_no_fault_of_ours(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(error) == EXIT_FAILED
    assert capsys.readouterr().err == f"error: memory ran out\nhint: {MEMORY_HINT}\n"


def test_a_command_that_ends_well_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(None) == 0
    assert capsys.readouterr() == ("", "")


def test_a_warning_differs_from_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    warn("half of\nit", "the other half")
    assert capsys.readouterr() == ("", "warning: half of it\nhint: the other half\n")


def test_what_is_done_again_says_its_warnings_once(capsys: pytest.CaptureFixture[str]) -> None:
    def look_first() -> None:
        with without_warnings(), without_warnings():
            warn("first", "unsaid")
            raise UsageError("a fault")

    with pytest.raises(UsageError):
        look_first()
    warn("again", "said")
    assert capsys.readouterr() == ("", "warning: again\nhint: said\n")


def test_a_panic_of_native_code_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    class PanicException(BaseException):
        pass

    assert run(PanicException("regex")) == EXIT_FAILED
    assert capsys.readouterr().err.startswith("error: internal error: PanicException: regex\n")


def test_ctrl_c_is_heard_again_where_it_leaves() -> None:
    def pressed_twice() -> None:
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
                pytest.fail("not heard")
        raise UsageError("no such")

    assert run(pressed_twice) == EXIT_USAGE  # it was dealt with
    assert run(lambda: signal.raise_signal(signal.SIGTERM)) == EXIT_TERMINATED


def test_ctrl_break_ends_as_sigterm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows' SIGBREAK, here with the number of another signal."""
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    assert run(lambda: signal.raise_signal(signal.SIGUSR1)) == EXIT_TERMINATED


def test_leaving_by_ctrl_c_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(KeyboardInterrupt()) == EXIT_INTERRUPTED
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_is_seen_through_other_exceptions(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def disguise() -> None:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as error:
            raise RuntimeError from error

    before = signal.getsignal(number)
    assert run(disguise, interrupted="go on") == 128 + number
    assert capsys.readouterr().err == "error: interrupted\nhint: go on\n"
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_wrong_usage_in_two_lines(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["somewhere", "--no-such-option"]
    if command == "gemma4-verify":
        arguments.append("--reference=tiny")
    assert COMMANDS[command](arguments) == EXIT_USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert "--no-such-option" in first
    assert second == f"hint: see {command} --help"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_every_command_has_help_and_a_version(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        COMMANDS[command]([option])
    assert leaving.value.code == 0
    told = capsys.readouterr().out
    assert f"{command} {__version__}\n" == told if option == "--version" else "--debug" in told


@pytest.mark.parametrize(
    ("command", "options"),
    [("gemma4-chat", []), ("gemma4-serve", []), ("gemma4-verify", ["--reference", "tiny"])],
)
@pytest.mark.parametrize(
    ("what", "message", "hint"),
    [
        (
            "nowhere",
            "there is no directory `nowhere`",
            "give the directory that gemma4-compile made (its -o)",
        ),
        ("notes.txt", "`notes.txt` is a file, and a package is a directory", "give the d"),
        ("package/model.so", "is a file", "give the directory that it is in: package"),
        ("checkpoint", "`checkpoint` is a checkpoint, not a package", "compile it first: "),
        ("adapter", "`adapter` is an adapter (`adapter_config.json`)", "compile it with"),
        ("empty", "`empty` is no package: `provenance.json` is missing", "give the directory"),
    ],
)
def test_what_is_no_package_is_called_what_it_is(
    command: str,
    options: list[str],
    what: str,
    message: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "checkpoint", "adapter", "package"):
        Path(folder).mkdir()
    files = ("checkpoint/config.json", "adapter/adapter_config.json", "package/model.so")
    for file in ("notes.txt", *files):
        Path(file).touch()
    Path("package/provenance.json").write_text("{}")
    assert COMMANDS[command]([what, *options]) == EXIT_FAILED
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert message in first
    assert second.startswith(f"hint: {hint}")


def test_nothing_is_diagnosed_where_nothing_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report"
    assert chat_cli.main([str(tmp_path / "nowhere"), "--diagnose", str(report)]) == EXIT_FAILED
    assert "there is no directory" in capsys.readouterr().err
    assert not report.exists()


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gemma4_compile", "gemma-4-E2B-it", "--plan"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (EXIT_FAILED, b"")


def test_a_full_disk_of_stdout_is_no_fault_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    assert run(error) == EXIT_FAILED
    told = capsys.readouterr().err
    assert told.startswith("error: the system refuses: [Errno 28] No space left on device\nhint: ")


def test_a_command_may_have_no_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run(lambda: print("unheard")) == 0


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("gemma4-compile tiny --quantization q4f16 -o x", "did you mean --quant? See gemma4-c"),
        ("gemma4-chat x --max-new-tokens=5", "did you mean --max-tokens? See gemma4-chat --help"),
        ("gemma4-compile --model tiny -o x", "see gemma4-compile --help"),
        ("gemma4-compile tiny --n-gpu-layers 99 -o x", "see gemma4-compile --help"),
        ("gemma4-compile tiny --target webgpu cpu -o x", "commas and no spaces between them"),
        ("gemma4-chat x hello", "a question goes behind --prompt"),
        ("gemma4-serve x y", "--model NAME=DIR --model NAME=DIR"),
        ("gemma4-verify x y --reference tiny", "see gemma4-verify --help"),
    ],
)
def test_what_is_unknown_has_a_hint_of_what_was_meant(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = line.split()
    assert COMMANDS[name](rest) == EXIT_USAGE
    error, hinted = capsys.readouterr().err.splitlines()
    assert error.startswith("error: unrecognized arguments: ")
    assert hinted.startswith("hint: ")
    assert hint in hinted
