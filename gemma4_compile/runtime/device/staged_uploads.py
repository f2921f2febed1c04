"""Uploads to Metal by TVM's runtime, which keeps few of them apart."""

from __future__ import annotations

from collections.abc import Callable


class StagedUploads:
    """Uploads to Metal since the last wait, of which there are never more than TVM keeps apart.

    Its runtime copies the bytes of an upload to a staging buffer at once, from where the GPU takes
    them in the order of its work. It has 64; from the 65th upload since a wait on it fills the
    first ones again, whether or not the GPU has read them.
    """

    MOST = 64

    def __init__(self, wait: Callable[[], None]) -> None:
        """None yet; `wait` waits for the device, which calls `begin_anew`."""
        self._wait, self._count = wait, 0

    def expect(self, count: int) -> None:
        """Wait for the device where so many more, at most `MOST`, would be too many."""
        if self._count + count > self.MOST:
            self._wait()
        self._count += count

    def begin_anew(self) -> None:
        """Note that the device has read all."""
        self._count = 0
