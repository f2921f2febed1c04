"""Limits of a process, each tried in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.confined.conversation import try_conversation
from gemma4_compile.confined.limits import command, start_folder
from gemma4_compile.errors import MediaError
from gemma4_compile.media.decode import decode_image
from gemma4_compile.runtime.grammar.schema_process import SchemaServer
from tests.scripted_engine import VOCABULARY, tiny_tokenizer

linux = pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
SECRETS = ("GEMMA4_SERVE_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")
HEAD = "import resource, time; from gemma4_compile.system.limits import *\n"


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + program],
        cwd=start_folder(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def printed(program: str) -> str:
    done = run(program)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_command_starts_a_module_of_this_package() -> None:
    assert command("schemas", "7") == [sys.executable, "-m", "gemma4_compile.confined.schemas", "7"]
    assert (start_folder() / "gemma4_compile").is_dir()


def test_such_a_process_has_no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the server, of the hub, of whatever else: as every place that starts one does it."""
    given: list[Mapping[str, str] | None] = []
    begin = subprocess.Popen.__init__

    def started(self: subprocess.Popen[bytes], *arguments: Any, **options: Any) -> None:
        given.append(options.get("env"))
        begin(self, *arguments, **options)

    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setattr(subprocess.Popen, "__init__", started)
    with pytest.raises(MediaError):
        decode_image(b"no picture")
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tiny_tokenizer().to_str())
    try_conversation(tokenizer, None, {}, VOCABULARY)
    server = SchemaServer(tiny_tokenizer().to_str, VOCABULARY, [1])
    server.follow(b"{}")
    server.close()
    assert len(given) == 3
    for environment in given:
        assert environment is not None
        assert environment["PATH"] == os.environ["PATH"]
        assert not {*SECRETS} & {*environment}
        assert "secret" not in environment.values()


@linux
def test_so_much_memory_more_and_no_further() -> None:
    begin = "held = bytearray(64 << 20); limit_memory(64 << 20)\n"
    assert printed(begin + "print(len(bytearray(16 << 20)))") == str(16 << 20)
    assert run(begin + "bytearray(128 << 20)").stderr.strip().endswith("MemoryError")


@linux
def test_a_stricter_limit_of_the_user_s_stays() -> None:
    program = """
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
limit_memory(1 << 40)
print(resource.getrlimit(resource.RLIMIT_AS))
"""
    assert printed(program) == str((1 << 30, 1 << 30))


def test_a_process_that_breaks_a_limit_leaves_no_core() -> None:
    program = "limit_memory(1 << 30); print(resource.getrlimit(resource.RLIMIT_CORE))"
    assert printed(program) == "(0, 0)"


def test_seconds_of_computing_are_limited() -> None:
    program = "limit_cpu(3); print(resource.getrlimit(resource.RLIMIT_CPU))"
    assert printed(program) == "(3, 3)"


@pytest.mark.parametrize("block", ["while True: pass", "sum(range(10**12))", "time.sleep(60)"])
def test_a_block_that_takes_too_long_ends_the_process(block: str) -> None:
    done = run(f"with time_limit(0.05):\n    {block}")
    assert done.returncode == -signal.SIGALRM


def test_the_limit_of_time_is_that_of_the_block_alone() -> None:
    program = """
with time_limit(0.1):
    pass
try:
    with time_limit(0.1):
        raise KeyError
except KeyError:
    time.sleep(0.2)
    print("still here")
"""
    assert printed(program) == "still here"


def test_a_handler_that_the_process_had_does_not_catch_it() -> None:
    program = """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
with time_limit(0.05):
    time.sleep(60)
"""
    assert run(program).returncode == -signal.SIGALRM
