"""The commands' beginnings: each finds its module, and what ends its loading is said in short."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gemma4_compile import __version__
from gemma4_compile.cli import start
from gemma4_compile.compile import library_processes
from gemma4_compile.options import compile as compile_options
from gemma4_compile.options.command import Command, CommandOptions

ROOT = Path(__file__).parents[3]
MODULE = "a_module_that_is_loaded"
COMMAND = Command("x", "Does nothing.", CommandOptions)
SCRIPT = re.compile(r'^(gemma4-\w+) = "gemma4_compile\.cli\.start:(\w+)"$', re.MULTILINE)


def scripts() -> dict[str, Callable[[], int]]:
    """Commands by the names that an installation gives them."""
    found = dict(SCRIPT.findall((ROOT / "pyproject.toml").read_text("utf-8")))
    return {command: getattr(start, function) for command, function in found.items()}


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Commands take the signals of their process, which is that of the tests here."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


# What loading may be doing, and what a command may: here they wait.
WAITING = "import time; print('ready', flush=True); time.sleep(60)"
LOADED = """
def run(options):
    {body}
"""
STUBBORN = """try:
        print('ready', flush=True)
        time.sleep(60)
    finally:
        time.sleep(0.5)
        print('cleared', flush=True)"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("module", "told"),
    [
        (WAITING, ""),
        (LOADED.format(body=WAITING), "error: interrupted\nhint: go on\n"),
        ("import time" + LOADED.format(body=STUBBORN), "error: interrupted\nhint: go on\n"),
    ],
    ids=["while it loads", "while it runs", "while it clears up"],
)
def test_signals_end_a_command_in_short(
    module: str, told: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / f"{MODULE}.py").write_text(module)
    code = (
        "import sys; from gemma4_compile.cli import start; start.begin()\n"
        "from gemma4_compile.options.command import Command, CommandOptions\n"
        "command = Command('x', 'y', CommandOptions, interrupted='go on')\n"
        f"sys.exit(start._run(command, CommandOptions(), {MODULE!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        time.sleep(0.2)
        process.send_signal(number)  # pressed twice
        out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert err == told
    assert ("cleared" in out) == ("cleared" in module)


@pytest.mark.parametrize("command", scripts())
@pytest.mark.parametrize("option", ["--version", "--help"])
@pytest.mark.parametrize("stdout", ["/dev/full", None])
def test_what_cannot_be_said_is_an_error(command: str, option: str, stdout: str | None) -> None:
    function = dict(SCRIPT.findall((ROOT / "pyproject.toml").read_text("utf-8")))[command]
    code = f"import sys; from gemma4_compile.cli import start; sys.exit(start.{function}())"
    shell = f'"$0" -c "$1" {option} ' + (">&-" if stdout is None else f"> {stdout}")
    done = subprocess.run(
        ["sh", "-c", shell, sys.executable, code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert re.fullmatch(r"error: the system refuses: .*\nhint: .*\n", done.stderr)


def test_streams_that_are_closed_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    start.open_streams()
    assert sys.stdin.read() == ""
    assert sys.stdout.write("lost") == sys.stderr.write("lost") == 4
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


def test_four_commands_begin_here() -> None:
    assert [*scripts()] == ["gemma4-compile", "gemma4-chat", "gemma4-serve", "gemma4-verify"]


@pytest.mark.parametrize("command", scripts())
def test_each_begins_its_own_command(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [command, "--help"])
    with pytest.raises(SystemExit) as leaving:
        scripts()[command]()
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {command} ")


@pytest.mark.parametrize("command", scripts())
def test_the_version_is_said_without_loading_anything(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{command}", "--version"])
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(name))
    with contextlib.suppress(SystemExit):
        assert scripts()[command]() == 0
    assert capsys.readouterr().out == f"{command} {__version__}\n"


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ("def run(options): pass", 0, ""),
        ("raise KeyboardInterrupt", 130, ""),
        ("import no_such_package", 1, "cannot be loaded: No module named 'no_such_package'"),
        ("raise OSError('libstdc++.so.6: no such file')", 1, "cannot be loaded: libstdc++.so.6"),
        ("raise AttributeError('x')", 1, "cannot be loaded: AttributeError('x')\nhint: install"),
        ("raise MemoryError", 1, "cannot be loaded: MemoryError()\nhint: close other programs"),
        ("raise ImportError('a.so: failed to map segment from shared object')", 1, "`ulimit -v`"),
    ],
)
def test_how_loading_may_end(
    body: str,
    status: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / f"{MODULE}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.setattr(sys, "argv", ["command"])
    assert start._run(COMMAND, CommandOptions(), MODULE) == status
    sys.modules.pop(MODULE, None)
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == (2 if told else 0)


@pytest.mark.parametrize(
    ("command", "arguments", "loads"),
    [
        ("gemma4-compile", ["tiny", "-o", "x"], False),
        ("gemma4-chat", ["PACKAGE"], False),
        ("gemma4-serve", ["PACKAGE"], False),
        ("gemma4-compile", ["tiny", "-o", "x", "--verify"], True),
        ("gemma4-compile", ["tiny", "-o", "x", "--verif"], True),
        ("gemma4-verify", ["DIR", "--reference", "tiny"], True),
    ],
)
def test_torch_is_loaded_by_what_needs_it(
    command: str,
    arguments: list[str],
    loads: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM would load it wherever it is installed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "torch.py").write_text("")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    found: list[bool] = []

    def load(_name: str) -> object:
        with contextlib.suppress(ImportError):
            __import__("torch")
        found.append(sys.modules.get("torch") is not None)
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", load)
    assert scripts()[command]() == 130
    assert found == [loads]
    __import__("torch")  # who wants it afterwards gets it
    monkeypatch.delitem(sys.modules, "torch")


def test_a_user_without_a_home_gets_one_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("HOME", "/somewhere")
    start.begin()
    assert os.environ["HOME"] == "/somewhere"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # neither $HOME nor a password's
    start.begin()
    assert os.environ["HOME"] == start.NO_HOME


@pytest.mark.slow
@pytest.mark.parametrize("kib", [300_000, 700_000])
def test_little_address_space_is_told_in_two_lines(kib: int, tmp_path: Path) -> None:
    code = "import sys; from gemma4_compile.cli.start import run_compile; sys.exit(run_compile())"
    run = subprocess.run(
        [
            *("bash", "-c", f'ulimit -v {kib}; exec "$@"', "bash", sys.executable, "-c", code),
            *("tiny", "--target", "cpu", "--quant", "f32", "-o", str(tmp_path / "package")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1
    *_, error, hint = run.stderr.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: close other programs")
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "package").exists()


def test_files_and_pipes_get_utf8_and_consoles_are_left_alone() -> None:
    class Console(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    content = io.BytesIO()
    piped = io.TextIOWrapper(content, "cp1252")
    console = Console(io.BytesIO(), "cp1252")
    start.use_utf8(piped, console, io.StringIO())
    piped.write("\u65e5\u672c \U0001f600")
    piped.flush()
    assert content.getvalue().decode() == "\u65e5\u672c \U0001f600"
    assert console.encoding == "cp1252"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGBREAK"])
def test_signals_to_end_have_one_exit_status(name: str) -> None:
    """SIGBREAK is Windows' for Ctrl-Break: here it has the number of another one."""
    script = (
        "import os, signal; signal.SIGBREAK = signal.SIGUSR1\n"
        f"from gemma4_compile.cli import start; start.begin(); os.kill(os.getpid(), signal.{name})"
    )
    done = subprocess.run([sys.executable, "-c", script])
    assert done.returncode == 128 + signal.SIGTERM


def test_processes_for_libraries_begin_before_the_compiler_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: list[int] = []

    @contextlib.contextmanager
    def begun_early(libraries: int) -> Iterator[None]:
        began.append(libraries)
        yield
        began.append(0)

    def run(_: object, options: CommandOptions, module: str, *, compares: bool) -> int:
        assert (module, compares) == ("gemma4_compile.cli.compile", False)
        assert options == compile_options.COMMAND.parse(["tiny", "-o", "x"])
        assert began == [9]
        return 7

    monkeypatch.setattr(library_processes, "begun_early", begun_early)
    monkeypatch.setattr(start, "begin", lambda: None)
    monkeypatch.setattr(start, "_run", run)
    monkeypatch.setattr(sys, "argv", ["gemma4-compile", "tiny", "-o", "x"])
    assert start.run_compile() == 7
    assert began == [9, 0]
    monkeypatch.setattr(sys, "argv", ["gemma4-compile", "tiny"])
    assert start.run_compile() == 2
    assert began == [9, 0], "none for a command that does not run"
