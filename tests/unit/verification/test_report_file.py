"""A report is written whole or not at all, and what cannot be written is said at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.verification import report_file
from gemma4_compile.verification.report_file import check_output, write_output
from tests.unit.system.test_names import as_on_windows


def test_an_error_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    write_output(path, "first\n")

    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("gemma4_compile.verification.report_file.os.replace", fail)
    with pytest.raises(ArtifactError, match="no space left"):
        write_output(path, "second\n")
    assert path.read_text() == "first\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_leads_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("there")
    write_output(tmp_path / "link", "text")
    assert (tmp_path / "there").read_text() == "text"
    assert (tmp_path / "link").is_symlink()


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    check_output(tmp_path / "new.json")
    (tmp_path / "old.json").write_text("{}")
    check_output(tmp_path / "old.json")
    os.mkfifo(tmp_path / "pipe")
    for wrong in (tmp_path, tmp_path / "none" / "a.json", tmp_path / "pipe", Path("a\0b")):
        with pytest.raises(UsageError, match="--output: cannot write"):
            check_output(wrong)


def test_a_name_that_the_system_has_for_a_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_file, "check_new_name", as_on_windows)
    with pytest.raises(UsageError, match=r"`con\.json` for a device"):
        check_output(tmp_path / "con.json")
