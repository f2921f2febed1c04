"""Ends a streamed text at the first of some strings, which may lie across several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter


class StopStrings:
    """Lets text through, but for what may be the beginning of a stop string.

    Attributes
    ----------
    found : the string that ended the text, or None
    """

    def __init__(self, strings: Sequence[str]) -> None:
        """Watch for `strings`, none of them empty."""
        self._strings = tuple(strings)
        self._beginnings = {text[:length] for text in strings for length in range(1, len(text))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Text that is certain, and whether a stop string was found right after it."""
        if not self._strings:
            return text, False
        self._held += text
        found = [(self._held.find(string), string) for string in self._strings]
        first = min((each for each in found if each[0] >= 0), key=itemgetter(0), default=None)
        if first is not None:
            at, self.found = first
            ready, self._held = self._held[:at], ""
            return ready, True
        end = len(self._held) - self._may_begin_a_stop_string()
        ready, self._held = self._held[:end], self._held[end:]
        return ready, False

    def flush(self) -> str:
        """Return the text that was held back, now that nothing follows."""
        rest, self._held = self._held, ""
        return rest

    def _may_begin_a_stop_string(self) -> int:
        """Count the characters at the end that a stop string may begin with."""
        for length in range(min(len(self._held), self._longest), 0, -1):
            if self._held[-length:] in self._beginnings:
                return length
        return 0
