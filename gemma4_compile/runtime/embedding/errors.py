"""What is wrong with texts, or with what was asked of them, for who answers in other words."""

from __future__ import annotations

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.engine.sequence import Overflow


class SettingError(UsageError):
    """An argument is none of the package's.

    Attributes
    ----------
    name : of the argument
    why : the message without it
    """

    def __init__(self, name: str, why: str, *, hint: str | None = None) -> None:
        super().__init__(f"{name}: {why}", hint=hint)
        self.name, self.why = name, why


class TextTooLongError(UsageError):
    """A text has more tokens than the package takes.

    Attributes
    ----------
    overflow : its tokens, and how many there may be
    """

    def __init__(self, number: int, overflow: Overflow) -> None:
        super().__init__(
            f"text {number} has {overflow.tokens} tokens, and this package takes up to "
            f"{overflow.most}",
            hint="cut it into passages, or compile with a larger --context",
        )
        self.overflow = overflow
