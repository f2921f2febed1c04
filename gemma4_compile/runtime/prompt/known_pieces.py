"""Ids of long texts in pieces, of which those are encoded that were not there before.

Agents send the same tens of thousands of tokens with every request. Where their keys and values are
kept, to encode their text would take most of the time to the first token.

A piece ends behind a newline that none follows. The ids of a text are those of its pieces where no
token reaches over such a place: see `can_be_cut`.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from gemma4_compile.types import JsonObject

PIECE_CHARACTERS = 2048
"""Of a piece, at least, but for the last one of a text."""
MOST_CHARACTERS = 2 << 20
"""Of all pieces that are known: with their ids these take some 30 MB. A piece with more ids than
characters, as of rare ones in bytes, counts by its ids."""
_END = re.compile(r"\n(?!\n)")
_OVER = re.compile(r"\n[^\n]")

Encode = Callable[[Sequence[str]], Sequence[list[int]]]
"""Ids of each of several texts."""


class KnownPieces:
    """Remembers the ids of the pieces that were used last, each tenant's own.

    Of several threads. Tenants share none, so that no time tells one what another asked.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Begin empty."""
        self._tokenizer = tokenizer
        self._is_able: bool | None = None  # a vocabulary is only looked at for a long text
        self._known: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def ids(self, text: str, encode: Encode, tenant: str = "") -> list[int]:
        """Ids of a text, those of known pieces as they were."""
        pieces = list(self._cut(text))
        with self._lock:
            found = {piece: self._use((tenant, piece)) for piece in pieces}
        new = [piece for piece, ids in found.items() if ids is None]
        found.update(zip(new, encode(new), strict=True) if new else ())
        with self._lock:
            for piece in new:
                if len(piece) >= PIECE_CHARACTERS:  # the end of a text is seldom that of another
                    self._keep((tenant, piece), found[piece] or [])
        return [token_id for piece in pieces for token_id in found[piece] or ()]

    def _cut(self, text: str) -> Iterator[str]:
        begin = 0
        while len(text) - begin > PIECE_CHARACTERS and self._can_cut():
            end = _END.search(text, begin + PIECE_CHARACTERS - 1)
            if end is None:
                break
            yield text[begin : end.end()]
            begin = end.end()
        if begin < len(text):
            yield text[begin:]

    def _can_cut(self) -> bool:
        if self._is_able is None:
            self._is_able = can_be_cut(self._tokenizer)
        return self._is_able

    def _use(self, name: tuple[str, str]) -> list[int] | None:
        ids = self._known.get(name)
        if ids is not None:
            self._known.move_to_end(name)
        return ids

    def _keep(self, name: tuple[str, str], ids: list[int]) -> None:
        if name in self._known or len(name[1]) > MOST_CHARACTERS:
            return
        self._known[name] = ids
        self._characters += max(len(name[1]), len(ids))
        while self._characters > MOST_CHARACTERS:
            (_, piece), gone = self._known.popitem(last=False)
            self._characters -= max(len(piece), len(gone))


def can_be_cut(tokenizer: Tokenizer) -> bool:
    """Return whether the ids of a text are those of its parts, cut behind newlines.

    So it is where all before the merges sees a character at a time, or cuts there itself, and no
    token has a newline with another character behind: merges on both sides then know nothing of
    each other. It is so for the tokenizers of Gemma.
    """
    model = tokenizer.model
    return (
        isinstance(model, BPE)
        and model.dropout is None
        and not model.continuing_subword_prefix
        and not model.end_of_word_suffix
        and tokenizer.truncation is None
        and tokenizer.padding is None
        and _is_of_characters(tokenizer)
        and (not model.ignore_merges or _splits_lines(_described(tokenizer.pre_tokenizer)))
        and not _takes_what_is_beside(tokenizer)
        and "\n" in (vocabulary := tokenizer.get_vocab())  # else unknown ones may become one
        and not any(map(_OVER.search, vocabulary))
    )


def _takes_what_is_beside(tokenizer: Tokenizer) -> bool:
    """Return whether an added token asks for the characters around it."""
    added = tokenizer.get_added_tokens_decoder().values()
    return any(one.lstrip or one.rstrip or one.single_word for one in added)


def _is_of_characters(tokenizer: Tokenizer) -> bool:
    """Return whether what changes and splits a text sees no more than a character, or lines."""
    normalizer, splitter = _described(tokenizer.normalizer), _described(tokenizer.pre_tokenizer)
    replaced = normalizer is None or (
        normalizer["type"] == "Replace"
        and len(normalizer["pattern"].get("String", "")) == 1
        and normalizer["content"] != ""  # else newlines come together where one was between them
        and "\n" not in normalizer["pattern"]["String"] + normalizer["content"]
    )
    at_spaces = splitter is not None and (
        splitter["type"] == "Split" and splitter["pattern"] == {"String": " "}
    )
    return replaced and (splitter is None or at_spaces or _splits_lines(splitter))


def _splits_lines(splitter: JsonObject | None) -> bool:
    """Return whether each run of newlines is a part of its own."""
    return splitter is not None and (
        splitter["type"] == "Split"
        and splitter["pattern"] == {"Regex": "\\n+"}
        and splitter["behavior"] == "Isolated"
        and not splitter["invert"]
    )


def _described(part: Normalizer | PreTokenizer | None) -> JsonObject | None:
    """A part of a tokenizer as tokenizer.json has it."""
    if part is None:
        return None
    described: JsonObject = json.loads(part.__getstate__())
    return described
