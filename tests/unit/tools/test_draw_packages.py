"""The picture of the packages, and its arrows.

`tests/unit/test_layering.py`, which parses every file, holds the committed one against them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.draw_packages import BEGIN, END, lines, main, needed, picture, reachable, with_picture


@pytest.mark.slow
def test_an_old_picture_is_found_and_renewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert main(["--check"], page) == 1
    assert "hint: make docs" in capsys.readouterr().err
    assert main([], page) == 0
    assert page.read_text(encoding="utf-8") == f"before\n{picture()}\nafter\n"
    assert main(["--check"], page) == 0


def test_a_page_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the lines"):
        with_picture(f"before\n{BEGIN}\nafter\n")


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}
    assert reachable(graph, "b") == {"c", "d"}
    assert needed(graph) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}


def test_a_cycle_of_parts_is_an_error() -> None:
    with pytest.raises(ValueError, match="imports itself"):
        needed({"a": {"b"}, "b": {"a"}})


def test_folders_and_files_that_join_folders_are_drawn() -> None:
    modules: dict[str, set[str]] = {
        "pipeline": {"gemma4_compile.package.shards", "gemma4_compile.checkpoint.match"},
        "errors": set(),
        "dump": {"gemma4_compile.package.files"},
        "checkpoint": {"gemma4_compile.errors"},
        "package": {"gemma4_compile.checkpoint"},
        "runtime": {"gemma4_compile.package.artifacts"},
    }
    drawn = list(lines(modules))
    assert "  pipeline([pipeline.py])" in drawn
    assert not [line for line in drawn if "errors" in line or "dump" in line]
    assert [line for line in drawn if ">" in line] == [
        "  package --> checkpoint",
        "  pipeline --> package",
        "  runtime -.->|artifacts| package",
    ]
