"""Tokens of several texts, as an encoder's function takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gemma4_compile.types import Array

Ids = Sequence[int]


def calls(lengths: Sequence[int], most: int) -> Iterator[range]:
    """Runs of texts that have together at most so many tokens, in order.

    One that has more alone is a run of its own.
    """
    begin, total = 0, 0
    for index, length in enumerate(lengths):
        if index > begin and total + length > most:
            yield range(begin, index)
            begin, total = index, 0
        total += length
    if begin < len(lengths):
        yield range(begin, len(lengths))


def packed(texts: Sequence[Ids]) -> tuple[Array, Array, Array]:
    """The arguments of `embed_texts`.

    Returns
    -------
    tuple[Array, Array, Array]
        int32: ids (n,) of all texts, one after the other; for each of them the first row of its
        text and the one after its last, (n, 2); the same for each text, (texts, 2).
    """
    lengths = np.array([len(text) for text in texts], np.int64)
    ends = np.cumsum(lengths)
    ranges = np.stack([ends - lengths, ends], axis=1).astype(np.int32)
    ids = np.concatenate([np.asarray(text, np.int32) for text in texts])
    return ids, np.repeat(ranges, lengths, axis=0), ranges


def cut(vectors: Array, dimensions: int) -> Array:
    """The first channels of vectors (n, width), of length 1 again."""
    if dimensions == vectors.shape[1]:
        return vectors
    first = vectors[:, :dimensions]
    norms = np.linalg.norm(first, axis=1, keepdims=True)
    shortened: Array = first / np.maximum(norms, np.float32(1e-12))
    return shortened
