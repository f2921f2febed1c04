"""From a text to an encoder's tokens, as sentence-transformers has them."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.prompt.prompt import longest_token_bytes


class TextTokens:
    """A package's tokenizer, with the tokens that stand before and behind a text.

    Attributes
    ----------
    vocab_size : of the model
    longest : letters of a text that one token stands for, at most
    """

    def __init__(self, package: Package) -> None:
        """Load it; ArtifactError if it is missing or damaged."""
        self.vocab_size = package.chat_config.vocab_size
        self._tokenizer = package.load_tokenizer()
        self.longest = longest_token_bytes(self._tokenizer)
        path = package.directory / "tokenizer_config.json"
        config = read_artifact(path) if path.exists() else {}
        # What a tokenizer of transformers adds where `tokenizer.json` itself does not.
        self._before = self._wanted(package, config.get("add_bos_token"), "bos_token")
        self._behind = self._wanted(package, config.get("add_eos_token"), "eos_token")
        self._first, self._final = self._around(self.of("a"))

    def _wanted(self, package: Package, is_added: object, name: str) -> list[int]:
        token = package.special_tokens().get(name)
        found = (
            None if is_added is not True or token is None else self._tokenizer.token_to_id(token)
        )
        return [] if found is None else [found]

    def _around(self, ids: list[int]) -> tuple[list[int], list[int]]:
        """What stands before and behind the one letter that these are the tokens of."""
        inner: list[int] = self._tokenizer.encode("a", add_special_tokens=False).ids
        starts = (i for i in range(len(ids)) if ids[i : i + len(inner)] == inner)
        begin = next(starts, 0)
        return ids[:begin], ids[begin + len(inner) :]

    def between(self, ids: Sequence[int], most: int | None = None) -> list[int]:
        """A text's own tokens between those that stand around a text, where they do not yet.

        They are then what `of` makes of the text, whether its tokens were made with special tokens
        or without them.
        """
        found = list(ids)
        if found[: len(self._first)] != self._first:
            found = self._first + found
        if found[len(found) - len(self._final) :] != self._final:
            found = found + self._final
        if most is None or len(found) <= most:
            return found
        return found[: most - len(self._final)] + self._final

    def of(self, text: str, most: int | None = None) -> list[int]:
        """Tokens of a text, at most so many; one that is cut keeps the token behind it."""
        ids: list[int] = self._tokenizer.encode(text).ids
        if ids[:1] != self._before:
            ids = self._before + ids
        if ids[-1:] != self._behind:
            ids = ids + self._behind
        if most is None or len(ids) <= most:
            return ids
        behind = self._last(ids)
        return ids[: most - len(behind)] + behind

    def _last(self, ids: list[int]) -> list[int]:
        """The token behind a text, if the tokenizer adds one."""
        around: list[int] = self._tokenizer.encode("").ids
        behind = self._behind or around[1:]
        return behind if behind and ids[-len(behind) :] == behind else []
