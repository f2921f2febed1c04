"""`GEMMA4_LOG`: an unknown level is an error of every command, none loads and changes nothing."""

import subprocess
import sys

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.options.command import Command, CommandOptions
from gemma4_compile.options.process import EXIT_USAGE
from gemma4_compile.system.logs import LEVELS, VARIABLE, set_up


@pytest.mark.parametrize("given", ["verbose", "10", "debug,info", "x" * 500])
def test_an_unknown_level_is_an_error_that_names_the_known_ones(given: str) -> None:
    with pytest.raises(UsageError, match="expected one of debug, info, warning, error") as caught:
        set_up({VARIABLE: given})
    assert len(str(caught.value)) < 150
    assert VARIABLE in str(caught.value.hint)


def test_every_command_refuses_it_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: CommandOptions) -> None:
        raise AssertionError("it began")

    monkeypatch.setenv(VARIABLE, "loud")
    command = Command("a-command", "Does nothing.", CommandOptions)
    assert command.main(run, []) == EXIT_USAGE
    assert "found `loud`" in capsys.readouterr().err
    with pytest.raises(SystemExit):  # help and version are shown in any case
        command.main(run, ["--version"])


PROGRAM = """
import sys
from gemma4_compile.system.logs import set_up
set_up()
print("logging" in sys.modules)
import logging
logger = logging.getLogger("gemma4_compile.some.module")
for level in ("debug", "info", "warning", "error"):
    logger.log(getattr(logging, level.upper()), "said at %s", level)
"""


def said_with(given: str | None) -> tuple[str, list[str]]:
    """Stdout, and the levels of what is on stderr."""
    environment = {} if given is None else {VARIABLE: given}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout, [line.rpartition(" ")[2] for line in done.stderr.splitlines()]


def test_a_level_writes_itself_and_what_is_above_it_to_stderr_alone() -> None:
    assert said_with(None) == ("False\n", ["warning", "error"])
    assert said_with(" ") == said_with(None)
    assert said_with("Debug") == ("True\n", list(LEVELS))
    assert said_with("error") == ("True\n", ["error"])
