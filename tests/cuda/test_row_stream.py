"""Rows of kept prefixes that come beside a forward, on a CUDA that has no GPU."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.runtime.library.row_stream import SWITCH
from tests.cuda import fake

ON = {SWITCH: "1"}


def test_a_layer_waits_for_its_own_rows(package: Path) -> None:
    fake.run("rows_by_layer", package, **ON)


def test_everything_else_waits_for_all_rows(package: Path) -> None:
    fake.run("rows_for_others", package, **ON)


def test_forwards_come_after_all_rows_where_that_is_switched_off(package: Path) -> None:
    fake.run("rows_at_once", package, **{SWITCH: "0"})
    fake.run("rows_for_others", package, **{SWITCH: "0"})


def test_an_error_on_the_way_loses_no_rows(package: Path) -> None:
    fake.run("rows_after_errors", package, **ON)
    fake.run("rows_after_an_interrupt", package, **ON)


def test_no_memory_is_freed_that_a_copy_has_yet_to_read(package: Path) -> None:
    fake.run("rows_are_held", package, **ON)


def test_nothing_is_left_of_the_stream(package: Path) -> None:
    fake.run("nothing_left", package, **ON)
