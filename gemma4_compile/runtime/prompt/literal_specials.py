"""Control tokens that a message spells out, as the text that they are.

As in transformers, a message that holds `<|turn>` holds that token. With `--literal-specials` it
holds the letters: they are hidden from the chat template by marks, and put in afterwards. Tokens in
whose place a picture or a sound goes are letters in any case.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any

from tokenizers import Tokenizer

from gemma4_compile.errors import UsageError

_LOOKS_LIKE_ONE = re.compile(r"<\|\S+>|<\S+\|>")


def control_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Added tokens that control a conversation, by their ids."""
    return {
        token_id: token.content
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special or _LOOKS_LIKE_ONE.fullmatch(token.content)
    }


class Hider:
    """Hides control tokens in texts by marks that nobody else can write."""

    def __init__(self, tokenizer: Tokenizer, only: Collection[str] | None = None) -> None:
        """Look at the tokenizer's added tokens.

        Parameters
        ----------
        only : those that are hidden; None for all that control

        Raises
        ------
        UsageError
            If one of them cannot be written as text.
        """
        every = control_tokens(tokenizer).values()
        self._tokens = list(every if only is None else only)
        self._ids = [self._spelled(tokenizer, token) for token in self._tokens]
        self._numbers = {token: number for number, token in enumerate(self._tokens)}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._secret = secrets.token_hex(8)
        self._marks = re.compile(f"\ue002{self._secret}([0-9]+)\ue003")

    @staticmethod
    def _spelled(tokenizer: Tokenizer, token: str) -> list[int]:
        """Ids of the token's letters: its first and the others cannot be taken for it."""
        ids: list[int] = []
        for part in (token[:1], token[1:]):
            ids += tokenizer.encode(part, add_special_tokens=False).ids
        if tokenizer.token_to_id(token) in ids:
            raise UsageError(
                f"this tokenizer has no text for its token `{token}`, so that it cannot be literal",
                hint="leave --literal-specials out for this package",
            )
        return ids

    def hide(self, value: Any) -> Any:
        """The value with every control token in its texts hidden, in objects and lists as well."""
        if isinstance(value, str):
            return self._spelling.sub(self._mark, value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide(item) for item in value]
        return value

    def split(self, text: str) -> list[str | list[int]]:
        """Texts to encode, and ids of what was hidden, in their order."""
        pieces: list[str | list[int]] = list(self._marks.split(text))
        for index in range(1, len(pieces), 2):
            number = pieces[index]
            assert isinstance(number, str), "replaced once"
            pieces[index] = self._ids[int(number)]
        return [piece for piece in pieces if piece]

    def _mark(self, found: re.Match[str]) -> str:
        return f"\ue002{self._secret}{self._numbers[found[0]]}\ue003"
