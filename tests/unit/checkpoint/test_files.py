"""Text files of a checkpoint: missing, damaged, too large, and in another file's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.checkpoint.files import check_place, read_json, read_text
from gemma4_compile.errors import CheckpointError


def test_text_is_utf8_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(CheckpointError, match="is missing"):
        read_text(path)
    for text, found, hint in (
        ("{}".encode("utf-16"), "not UTF-8 text, but UTF-16", "UTF-8 without a byte order mark"),
        (b"\xfc", "text$", "save it as UTF-8"),
    ):
        path.write_bytes(text)
        with pytest.raises(CheckpointError, match=found) as caught:
            read_text(path)
        assert hint in (caught.value.hint or "")
    path.write_text("Grüße")
    assert read_text(path) == "Grüße"
    with pytest.raises(CheckpointError, match="too large"):
        read_text(path, 3)


def test_json_is_an_object(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, 2]}')
    assert read_json(path) == {"a": [1, 2]}
    for text in ("[1]", "{", '{"a": 1, "a": 2}'):
        path.write_text(text)
        with pytest.raises(CheckpointError, match="is damaged"):
            read_json(path)


@pytest.mark.parametrize(
    ("text", "hint"), [("{,}", "correct that place"), ("\ufeff{}", "without a byte order mark")]
)
def test_what_an_editor_has_done_to_json_is_told(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "a.json").write_text(text, "utf-8")
    with pytest.raises(CheckpointError) as raised:
        read_json(tmp_path / "a.json")
    assert hint in str(raised.value.hint)


def test_a_link_stays_below_the_root_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "root" / "in").mkdir(parents=True)
    (tmp_path / "root" / "real").touch()
    (tmp_path / "out").touch()
    (tmp_path / "root" / "in" / "link").symlink_to(tmp_path / "root" / "real")
    check_place(tmp_path / "root" / "in" / "link", tmp_path / "root")
    with pytest.raises(CheckpointError, match="leads out of"):
        check_place(tmp_path / "root" / "in" / "link")
    (tmp_path / "root" / "in" / "link").unlink()
    (tmp_path / "root" / "in" / "link").symlink_to(tmp_path / "out")
    with pytest.raises(CheckpointError, match="leads out of"):
        check_place(tmp_path / "root" / "in" / "link", tmp_path / "root")
