"""Token ids of many dialogues, which of them are trained on, and batches of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from tools.training.tiny.dialogues import Dialogue, training_dialogue

OPEN_TURN, CLOSE_TURN = 105, 106
OPEN_RESPONSE, CLOSE_RESPONSE = 50, 51
_HEAD = 3  # tokens of `<|turn>model\n`
_LENGTH_STEP = 16
_CHUNK = 2000
_FIRST_SEED = 1_000_000

Writer = Callable[[int], Dialogue]
"""Writes the dialogue of a seed."""

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Corpus:
    """Dialogues one after the other: `ids[begins[i] : begins[i + 1]]` is the i-th."""

    ids: npt.NDArray[np.int16]
    begins: npt.NDArray[np.int64]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each dialogue."""
        return np.diff(self.begins)


def _encode(job: tuple[str, Writer, int, int]) -> list[npt.NDArray[np.int16]]:
    tokenizer = Tokenizer.from_file(job[0])
    texts = [job[1](seed).text() for seed in range(job[2], job[3])]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.asarray(one.ids, np.int16) for one in encoded]


def make_corpus(files: Path, count: int, workers: int, write: Writer = training_dialogue) -> Corpus:
    """Encode `count` dialogues that `write` makes; the result does not depend on `workers`."""
    path, end = str(files / "tokenizer.json"), _FIRST_SEED + count
    begins = range(_FIRST_SEED, end, _CHUNK)
    jobs = [(path, write, begin, min(begin + _CHUNK, end)) for begin in begins]
    if workers > 1:
        # Not forked: the tokenizer has threads, of which a fork has none and may wait for one.
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            parts = list(pool.map(_encode, jobs, chunksize=4))
    else:
        parts = [_encode(job) for job in jobs]
    rows = [row for part in parts for row in part]
    borders = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Corpus(np.concatenate(rows), borders)


def answered(ids: npt.NDArray[np.integer], model_id: int | None) -> BoolArray:
    """Tokens that the model must predict: its calls, its answers and the ends of its turns.

    It asks for a tool's response with the token that opens it; what follows is the tool's.

    Parameters
    ----------
    ids : (dialogues, tokens)
    model_id : the token `model` behind the beginning of a turn
    """
    assert model_id is not None, "the tokenizer has a token `model`"
    places = np.arange(ids.shape[1])
    begin = np.maximum.accumulate(np.where(ids == OPEN_TURN, places, 0), axis=1)
    role = np.take_along_axis(ids, np.minimum(begin + 1, ids.shape[1] - 1), axis=1)
    closed = np.maximum.accumulate(np.where(ids == CLOSE_TURN, places, -1), axis=1)
    inside = (closed < begin) | (closed == places)
    asked = np.maximum.accumulate(np.where(ids == OPEN_RESPONSE, places, -1), axis=1)
    told = np.maximum.accumulate(np.where(ids == CLOSE_RESPONSE, places, -1), axis=1)
    of_a_tool = (asked > told) & (asked < places) | (told == places)
    own = inside & ~of_a_tool
    found: BoolArray = (role == model_id) & (places >= begin + _HEAD) & own & (ids != 0)
    return found


def of_last_turns(ids: npt.NDArray[np.integer], wanted: BoolArray) -> BoolArray:
    """Those of the wanted tokens that are in the last turn of their dialogue."""
    places = np.arange(ids.shape[1])
    last = np.where(ids == OPEN_TURN, places, 0).max(axis=1, keepdims=True)
    found: BoolArray = wanted & (places > last)
    return found


def padded(rows: Sequence[npt.NDArray[np.integer]]) -> IntArray:
    """Rows filled up with 0 to the same length, a multiple of 16."""
    longest = max(len(row) for row in rows)
    batch = np.zeros((len(rows), -(-longest // _LENGTH_STEP) * _LENGTH_STEP), np.int64)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    return batch


def batches(corpus: Corpus, tokens: int, seed: int) -> Iterator[IntArray]:
    """Batches of about `tokens` ids without end, each dialogue once per epoch."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(corpus.lengths))
        # Neighbours in length share a batch; which of equal length is random.
        order = order[np.argsort(corpus.lengths[order], kind="stable")]
        widths = -(-corpus.lengths[order] // _LENGTH_STEP) * _LENGTH_STEP
        cuts, begin = [], 0
        while begin < len(order):
            end = min(begin + max(1, tokens // int(widths[begin])), len(order))
            while end > begin + 1 and (end - begin) * int(widths[end - 1]) > tokens:
                end = begin + max(1, tokens // int(widths[end - 1]))
                break
            cuts.append((begin, end))
            begin = end
        for index in rng.permutation(len(cuts)):
            first, last = cuts[index]
            chosen = order[first:last]
            yield padded([corpus.ids[corpus.begins[i] : corpus.begins[i + 1]] for i in chosen])
