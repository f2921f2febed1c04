"""Turns a stream of token ids into text, never showing half a character."""

from __future__ import annotations

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"  # what the tokenizer gives for bytes that are no whole character
_MAX_HELD = 4  # bytes of the longest UTF-8 character


class StreamingDetokenizer:
    """Holds tokens back while they may be the first bytes of a character that is not complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        """Text that this token completes; empty while a character is incomplete."""
        self._held.append(token_id)
        text = self._decode()
        if text.endswith(REPLACEMENT) and len(self._held) < _MAX_HELD:
            return ""
        self._held.clear()
        return text

    def flush(self) -> str:
        """Text of what is still held back; bytes that are no character become U+FFFD."""
        text = self._decode()
        self._held.clear()
        return text

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(self._held, skip_special_tokens=True)
        return text
