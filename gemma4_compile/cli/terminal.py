"""Progress of a run on stderr: stages as lines, long ones as a bar or as lines in a log."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

from gemma4_compile.progress import ByteProgress

_log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0


class Terminal:
    """A reporter for people."""

    def __init__(self) -> None:
        self._stage = "", 0.0  # the last one, and when it began

    def stage(self, text: str) -> None:
        """Print what begins; the log has how long the one before it took."""
        print(text, file=sys.stderr, flush=True)
        before, began_s = self._stage
        self._stage = text, time.monotonic()
        if before:
            _log.info("%.2f s: %s", self._stage[1] - began_s, before)

    @contextlib.contextmanager
    def progress(self, text: str, total_bytes: int) -> Iterator[ByteProgress]:
        """Show bytes, rate and time left: a bar on a terminal, a line now and then elsewhere.

        What the first call reports was there before, so it counts as done but not as speed.
        """
        if not sys.stderr.isatty():
            self.stage(text)
            lines = ProgressLines(text, total_bytes, self.stage, time.monotonic)
            yield lines.advance
            lines.close()
            return
        with tqdm(
            total=total_bytes,
            desc=text,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
        ) as bar:
            first = True

            def advance(count: int) -> None:
                nonlocal first
                if first:
                    bar.initial, first = count, False
                bar.update(count)

            yield advance


class ProgressLines:
    """Progress for logs: at most a line every SECONDS_BETWEEN_LINES, and one at a late end."""

    def __init__(
        self,
        text: str,
        total_bytes: int,
        say: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._text, self._total = text, total_bytes
        self._say, self._clock = say, clock
        self._done = self._before = 0
        self._begin = self._said = clock()
        self._started = False

    def advance(self, count: int) -> None:
        """Note some bytes more; the first call reports what was there before."""
        self._done += count
        if not self._started:
            self._before, self._started = count, True
        now = self._clock()
        if now - self._said >= SECONDS_BETWEEN_LINES and self._done < self._total:
            self._said = now
            rate = self._rate(now)
            left = f", {duration((self._total - self._done) / rate)} left" if rate else ""
            done = f"{gigabytes(self._done)} of {gigabytes(self._total)} GB"
            self._say(f"{self._text}: {done}, {rate / 1e6:.0f} MB/s{left}")

    def close(self) -> None:
        """Report how long it took, if it took long."""
        now = self._clock()
        if now - self._begin < SECONDS_BETWEEN_LINES:
            return
        written = gigabytes(self._done - self._before)
        took, rate = duration(now - self._begin), self._rate(now) / 1e6
        self._say(f"{self._text}: {written} GB in {took}, {rate:.0f} MB/s")

    def _rate(self, now: float) -> float:
        """Bytes per second so far."""
        return (self._done - self._before) / max(now - self._begin, 1e-3)


def gigabytes(nbytes: int) -> str:
    """Bytes as a number of gigabytes."""
    return f"{nbytes / 1e9:.2f}"


def duration(seconds: float) -> str:
    """Seconds as minutes or hours."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
