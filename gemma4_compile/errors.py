"""The error classes of the whole project. Imports nothing of ours.

Every error that a user, a file or a device can cause is one of these. The message names what
failed, what was expected and what was found; ``hint`` is what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_MESSAGE = 4000  # characters; a file may hold names of any length
# Control characters, those that turn the order of letters, and halves of characters.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text that can be written to any terminal: control characters as escapes, bounded length.

    Names come from files that anybody may have written: they must not move the cursor, change the
    order of letters or stop the program that prints them.
    """
    if len(text) > MAX_MESSAGE:
        half = MAX_MESSAGE // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return _escaped(text, str.isprintable)


def printable_text(text: str) -> str:
    """Text of any length that a terminal shows as it is.

    Unlike `printable` it keeps what scripts and emoji need: joiners, and spaces of all widths.
    """
    return _escaped(text, lambda letter: not _STEERING.match(letter))


def _escaped(text: str, is_shown: Callable[[str], bool]) -> str:
    return "".join(
        letter
        if letter in "\n\t" or is_shown(letter)
        else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def is_panic(error: BaseException) -> bool:
    """Return whether native code of `tokenizers` gave up; its class cannot be imported by name."""
    return type(error).__name__ == "PanicException"


class Gemma4CompileError(Exception):
    """Base class: a message for people and an optional hint on what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(printable(message))
        self.hint = None if hint is None else printable(hint)


class InterruptedRunError(KeyboardInterrupt):
    """An interruption that leaves something behind; `hint` names what, and what to do with it."""

    def __init__(self, hint: str) -> None:
        super().__init__()
        self.hint = printable(hint)


class UsageError(Gemma4CompileError):
    """The command line asks for what does not exist or fit together (exit code 2)."""


class CheckpointError(Gemma4CompileError):
    """A checkpoint file is missing, damaged, or does not match the model."""


class ConfigError(Gemma4CompileError):
    """`config.json` is damaged, has an unknown key, or describes an unsupported variant."""


class QuantizationError(Gemma4CompileError):
    """A tensor cannot be stored in the scheme that the recipe asks for."""


class LoweringError(Gemma4CompileError):
    """The model cannot be lowered to kernels that the target can run."""


class TargetError(Gemma4CompileError):
    """The target's toolchain failed or the result breaks the target's contract."""


class MediaError(Gemma4CompileError):
    """A picture, sound or video is damaged, beyond a limit, or of a kind that is not read."""


class ArtifactError(Gemma4CompileError):
    """A package on disk is damaged, incomplete or from another version."""


class VerificationError(Gemma4CompileError):
    """A package does not reach the thresholds of its recipe."""
