"""Attention of a chunk with memory in which blocks that divide its keys leave their sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.tir import FunctionBuilder
from gemma4_compile.operators.types import Buffer


@dataclass(frozen=True)
class DividedAttention(PrefillAttention):
    """`PrefillAttention` with two more results, whose values have no meaning afterwards.

    Arguments as there, of a whole cache without a window. Results: (rows, heads * head_dim)
    out_dtype; memory for weighted sums of values (places, heads, head_dim) f32, and for a highest
    score and a sum of weights each (places, heads, 2) f32. A place is for a row in a split of the
    keys. The definition leaves both alone.

    Attributes
    ----------
    blocks : that fill the device; a chunk with fewer than half as many divides its keys
    places : rows * splits of such a chunk, at most
    """

    kind: ClassVar[str] = "divided_attention"
    blocks: int = 0
    places: int = 0

    def memory(self) -> dict[str, TensorSpec]:
        """The results behind the first, by name."""
        lead = self.places, self.heads
        return {
            "sums": ((*lead, self.head_dim), "float32"),
            "weights": ((*lead, 2), "float32"),
        }

    def declare_memory(self, build: FunctionBuilder) -> list[Buffer]:
        return [build.arg(name, *spec) for name, spec in self.memory().items()]
