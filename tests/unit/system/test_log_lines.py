"""A line of the log: when, level, process, module, message; and the processes that are noted."""

import logging
import re
from collections.abc import Iterator

import pytest

from gemma4_compile.system.log_lines import NAME, process_noted, write_from


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    logger = logging.getLogger(NAME)
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def test_a_record_is_one_line_that_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    write_from("INFO")
    write_from("INFO")  # adds no second handler
    try:
        raise ValueError("of two\nlines")
    except ValueError:
        logging.getLogger("gemma4_compile.runtime.x").info("a \x1b[2J\nfile", exc_info=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert re.match(r"\d\d:\d\d:\d\d\.\d{3} info \[\d+\] runtime\.x: a \\x1b\[2J file Trace", line)
    assert "ValueError: of two lines" in line


def test_a_process_is_noted_at_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    write_from("DEBUG")
    with pytest.raises(KeyError), process_noted("a worker"):
        raise KeyError
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun.endswith("processes: started: a worker")
    assert re.search(r"processes: ended after \d+\.\d\d s: a worker$", ended)
