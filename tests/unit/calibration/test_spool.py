"""Finished parts stay for the same calibration, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gemma4_compile.calibration.spool import Spool, opened, place
from gemma4_compile.errors import ArtifactError, InterruptedRunError

PAIR = np.zeros((2, 4), np.uint32), np.ones((2, 1), np.float16)


def test_a_part_stays_for_its_key_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "spool") as spool:
        assert spool.text("a") is None
        spool.note_text("a", [[1, 2]])
        spool.note("layers-0", {"w": PAIR})
    with opened(tmp_path / "spool") as spool:
        assert spool.text("a") == [[1, 2]]
        assert spool.has("layers-0")
        assert not spool.has("layers-1")
    with opened(tmp_path / "spool") as spool:
        assert spool.text("b") is None
        assert not spool.has("layers-0")


def test_a_part_that_was_cut_off_is_none(tmp_path: Path) -> None:
    with opened(tmp_path / "spool") as spool:
        spool.note_text("a", [[1]])
        spool.note("layers-0", {"w": PAIR})
    (part,) = (tmp_path / "spool").glob("part-*")
    part.write_bytes(part.read_bytes()[:-1])
    (tmp_path / "spool" / "part-layers-1.safetensors.unfinished").write_bytes(b"x")
    with opened(tmp_path / "spool") as spool:
        assert spool.text("a") == [[1]]
        assert not spool.has("layers-0")
        spool.remove()
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize("place", [-1, -50])
def test_a_part_with_other_bytes_is_none(place: int, tmp_path: Path) -> None:
    with opened(tmp_path / "spool") as spool:
        spool.note_text("a", [[1]])
        spool.note("layers-0", {"w": PAIR})
        (part,) = spool.folder.glob("part-*")
        content = bytearray(part.read_bytes())
        content[place] ^= 1
        part.write_bytes(content)
        assert not spool.has("layers-0")


def test_an_interruption_says_what_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as nothing, opened(tmp_path / "spool"):
        raise KeyboardInterrupt
    assert not isinstance(nothing.value, InterruptedRunError)
    with opened(tmp_path / "spool") as spool:
        spool.note_text("a", [[1]])
    with pytest.raises(InterruptedRunError) as found, opened(tmp_path / "spool"):
        raise KeyboardInterrupt
    assert f"the same command goes on from it; to delete it: rm -r {tmp_path}" in found.value.hint


def test_nothing_stays_of_a_run_that_fails_before_its_text(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="early"), opened(tmp_path / "spool"):
        raise ArtifactError("early")
    assert not list(tmp_path.iterdir())


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        opened(tmp_path / "spool"),
        pytest.raises(ArtifactError, match="another run"),
        opened(tmp_path / "spool"),
    ):
        pass


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="it is a link"), opened(tmp_path / "spool"):
        pass
    assert not list((tmp_path / "elsewhere").iterdir())


def test_files_of_others_stay(tmp_path: Path) -> None:
    with opened(tmp_path / "spool") as spool:
        (spool.folder / "mine").touch()
        spool.remove()
    assert (tmp_path / "spool" / "mine").exists()
    assert place(tmp_path / "out") == tmp_path / ".out.calibration"
    assert isinstance(spool, Spool)
