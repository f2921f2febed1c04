"""Random weights for a compiled library, of a size that keeps activations sane. Needs NumPy alone.

A block of random bits is made once for each kind of tensor and repeated: what counts is that no
value grows from layer to layer, and that gigabytes are written at the speed of the disk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 32 << 20
ALIGNMENT = 256
GROUP, GROUP_BITS = 32, (4, 6, 8)
BLOCK = 256
"""Columns to a scale of a per-layer table in a checkpoint's own steps."""
ATTENTION_BITS = 4
STEP = 1 / 32
"""Of activations of a deviation of 1, in range up to 4 of them."""
NIBBLES = 8
"""Integers of 4 bits to a word."""
MINIMA_MANTISSAS, MINIMA_UNITS = np.uint32(0x007F007F), np.uint32(0x39003A80)
"""Of a block with minima, the units of scales and minima: bfloat16 from 2^-13 and from 2^-10."""
PAIRS = re.compile(r"^.*\.pairs(\.part\d+)?$")
BOUNDS = np.array([-4, 4, -16, 16], np.float32)
"""Of a tower's matmul: some values are beyond them."""
SEEING = re.compile(r"^.*\.[qk]_norm\.weight$")
SEEING_MIDDLE = 0.25
"""Of norms of queries and keys: scores of 256 channels deviate by 1, so that many keys are seen.

With 1 each query sees one key, and another order of sums gives other logits altogether.
"""
ROUTER = re.compile(r"^.*\.router\.proj\.weight$")
QUANTISED = re.compile(r"^(.*)\.(q_weight|q_scale)(\.part\d+)?$")


@dataclass(frozen=True)
class Weight:
    """A stored tensor as the library's metadata names it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def listed(cls, metadata: Mapping[str, Any]) -> list[Weight]:
        """Return the weights that a library's metadata names."""
        return cls._of(metadata["params"])

    @classmethod
    def of_drafter(cls, metadata: Mapping[str, Any]) -> list[Weight]:
        """Return those of its drafter; none where it has none."""
        return cls._of(metadata.get("drafter", {}).get("params", []))

    @classmethod
    def _of(cls, listed: list[dict[str, Any]]) -> list[Weight]:
        return [cls(item["name"], tuple(item["shape"]), item["dtype"]) for item in listed]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Filler:
    """Random bytes for tensors; the values of one kind repeat after `BLOCK_BYTES`.

    Parameters
    ----------
    skew : how unevenly experts are chosen: the router's rows are as large as their rank to the
        power of `-skew`, in an order of each layer's own; 0 chooses all alike
    """

    def __init__(self, weights: list[Weight], skew: float = 0.0) -> None:
        self._skew = skew
        self._shapes = {weight.name: weight.shape for weight in weights}
        scales = [weight for weight in weights if ".q_scale" in weight.name]
        self._with_minima = {one.name for one in scales if one.dtype == "uint32"}
        self._blocks: dict[Any, npt.NDArray[np.uint8]] = {}
        self._random = np.random.default_rng(0)

    def pieces(self, weight: Weight) -> Iterator[npt.NDArray[np.uint8]]:
        """The tensor's bytes, in order."""
        if self._skew and ROUTER.match(weight.name):
            yield self._skewed(weight)
            return
        block, left = self._block(self._kind(weight)), weight.nbytes
        # Another start for each tensor, at a multiple of what a value or a scale's group takes.
        begin = int(self._random.integers(0, len(block) // ALIGNMENT)) * ALIGNMENT
        while left:
            piece = block[begin : begin + left]
            yield piece
            left, begin = left - len(piece), 0

    def _skewed(self, weight: Weight) -> npt.NDArray[np.uint8]:
        rows, columns = weight.shape
        sizes = self._random.permutation(np.arange(1, rows + 1) ** -self._skew)
        sizes *= math.sqrt(rows / np.sum(sizes**2))  # the scores of all experts deviate as ever
        values = self._random.uniform(-1, 1, (rows, columns)) * math.sqrt(3 / columns)
        return (values * sizes[:, None]).astype(weight.dtype).view(np.uint8).reshape(-1)

    def _kind(self, weight: Weight) -> tuple[Any, ...]:
        quantised = QUANTISED.match(weight.name)
        if quantised:
            stem, kind, part = quantised[1], quantised[2], quantised[3] or ""
            if weight.name in self._with_minima:
                return ("minima",)
            bits, columns = self.integers(stem, part)
            if kind == "q_weight":
                return ("bits", bits)
            deviation = (2**bits - 2) / math.sqrt(12)  # of evenly spread quantised values
            scale = 1 / (deviation * math.sqrt(columns))
            return ("between", weight.dtype, 0.8 * scale, 1.2 * scale)
        if weight.name.endswith(".steps.weight"):
            return ("between", weight.dtype, STEP, 1.2 * STEP)
        if PAIRS.match(weight.name):
            return ("halves", math.sqrt(3 / (2 * weight.shape[-1])))
        if weight.name.endswith(".bounds.weight"):
            return ("bounds",)
        if weight.name.endswith(".token_ordering.weight"):  # the tokens of a drafter's clusters
            return ("tokens", weight.dtype, math.prod(weight.shape))
        if len(weight.shape) == 1:
            middle = 0.5 if "layer_scalar" in weight.name else 1.0
            middle = SEEING_MIDDLE if SEEING.match(weight.name) else middle
            return ("between", weight.dtype, 0.9 * middle, 1.1 * middle)
        bound = math.sqrt(3 / weight.shape[-1])
        return ("between", weight.dtype, -bound, bound)

    def integers(self, stem: str, part: str = "") -> tuple[int, int]:
        """Bits of a matrix's integers, and its columns."""
        words = self._shapes[f"{stem}.q_weight{part}"][-1]
        groups = self._shapes[f"{stem}.q_scale{part}"][-1]
        if f"{stem}.q_scale{part}" in self._with_minima:
            return 4, words * NIBBLES
        each, rest = divmod(words, groups)
        assert not rest, stem
        if each in GROUP_BITS:  # a group of 32 values takes as many words as a value has bits
            return each, GROUP * groups
        if groups > 1:
            return each * GROUP // BLOCK, BLOCK * groups
        columns = self._columns(stem, words)
        return words * GROUP // columns, columns

    def _columns(self, stem: str, words: int) -> int:
        """Columns of a matrix with a scale a row, which the matrix before it says, or the norms."""
        layer, _, own = stem.rpartition(".")
        if own == "down_proj":
            return self._shapes[f"{layer}.gate_up_proj.q_scale"][0] // 2
        if own == "per_layer_projection":
            return self._shapes[f"{layer}.per_layer_input_gate.q_scale"][0]
        if own == "o_proj":
            return words * GROUP // ATTENTION_BITS
        return self._shapes["norm.weight"][0]

    def _block(self, kind: tuple[Any, ...]) -> npt.NDArray[np.uint8]:
        if kind not in self._blocks:
            if kind[0] == "bits":
                bits = self._random.integers(0, 256, BLOCK_BYTES, dtype=np.uint8)
                # All ones, which bytes never are, becomes the zero: that keeps the mean at zero.
                if kind[1] == 8:
                    bits[bits == 255] = 127
                elif kind[1] == 2:
                    bits ^= (bits & (bits >> 1) & 0x55) << 1
                elif kind[1] == 4:
                    bits[bits & 15 == 15] -= 8
                    bits[bits >> 4 == 15] -= 128
                self._blocks[kind] = bits
            elif kind[0] == "minima":
                words = self._random.integers(0, 2**32, (BLOCK_BYTES // 16, 4), dtype="<u4")
                words[:, 0] = (words[:, 0] & MINIMA_MANTISSAS) + MINIMA_UNITS
                self._blocks[kind] = words.reshape(-1).view(np.uint8)
            elif kind[0] == "halves":
                values = self._random.uniform(-kind[1], kind[1], BLOCK_BYTES // 2)
                upper = values.astype("<f4").view("<u4") >> np.uint32(16)
                self._blocks[kind] = upper.astype("<u2").view(np.uint8)
            elif kind[0] == "bounds":
                count = BLOCK_BYTES // BOUNDS.nbytes
                self._blocks[kind] = np.tile(BOUNDS, count).view(np.uint8)
            elif kind[0] == "tokens":
                tokens = self._random.permutation(kind[2]).astype(kind[1])
                repeats = -(-BLOCK_BYTES // tokens.nbytes)
                self._blocks[kind] = np.tile(tokens, repeats).view(np.uint8)
            else:
                _, dtype, low, high = kind
                count = BLOCK_BYTES // np.dtype(dtype).itemsize
                values = self._random.uniform(low, high, count).astype(dtype)
                self._blocks[kind] = values.view(np.uint8)
        return self._blocks[kind]


def vocabulary_of(weights: list[Weight]) -> int:
    """Rows of the token embedding, which may be stored in parts."""
    rows = [
        weight.shape[0]
        for weight in weights
        if weight.name.startswith("embed_tokens.")
        and not any(end in weight.name for end in (".q_scale", ".steps."))
    ]
    assert rows, "the library has a token embedding"
    return sum(rows)


def write_shards(
    weights: list[Weight],
    folder: Path,
    shard_bytes: int,
    stem: str = "params_shard_",
    skew: float = 0.0,
) -> Mapping[str, Any]:
    """Write the shards, files that begin with `stem`; return the tensor cache as in its file."""
    filler = Filler(weights, skew)
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, object]] = []
    waiting = list(weights)
    while waiting:
        name = f"{stem}{len(entries)}.bin"
        records: list[dict[str, object]] = []
        size = 0
        with (folder / name).open("wb") as file:
            while waiting and (not records or size + waiting[0].nbytes <= shard_bytes):
                weight = waiting.pop(0)
                padding = -size % ALIGNMENT
                file.write(b"\0" * padding)
                size += padding
                records.append(
                    {
                        "name": weight.name,
                        "shape": list(weight.shape),
                        "dtype": weight.dtype,
                        "format": "raw",
                        "nbytes": weight.nbytes,
                        "byteOffset": size,
                    }
                )
                for piece in filler.pieces(weight):
                    file.write(piece.data)
                size += weight.nbytes
        entries.append(
            {
                "dataPath": name,
                "format": "raw-shard",
                "nbytes": size,
                "md5sum": "",
                "records": records,
            }
        )
    return {"metadata": {"ParamCount": 1}, "records": entries}
