"""Uploads to Metal between two waits."""

from __future__ import annotations

from gemma4_compile.runtime.device.staged_uploads import StagedUploads


def test_there_are_never_more_than_are_kept_apart() -> None:
    waits: list[int] = []
    made: list[int] = []

    def wait() -> None:
        waits.append(len(made))
        uploads.begin_anew()

    uploads = StagedUploads(wait)
    for number in range(50):
        uploads.expect(3)
        made.append(number)
    # 21 times three are 63; one more would be 66.
    assert waits == [21, 42]


def test_as_many_as_are_kept_need_no_wait() -> None:
    waits: list[None] = []
    uploads = StagedUploads(lambda: waits.append(None))
    uploads.expect(StagedUploads.MOST)
    assert not waits
    uploads.expect(1)
    assert len(waits) == 1
