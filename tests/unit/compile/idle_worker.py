"""A process that says what it was given, when its input ends."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.stdout.buffer.write(sys.stdin.buffer.read())
