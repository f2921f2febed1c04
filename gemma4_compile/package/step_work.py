"""What a token and a prompt ask of a device at least: bytes to read, operations to do.

Counted when a library is compiled and kept in its metadata, where a measurement on any device finds
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile import abi
from gemma4_compile.package.fields import Fields
from gemma4_compile.types import JsonObject

STEP_WORK = "step_work"
"""Name of the entry in a library's metadata."""
_ATTENTION = "attention"


@dataclass(frozen=True)
class AttentionWork:
    """The attention of a kind of layers.

    Attributes
    ----------
    layers : how many decode
    whole_layers : of these, those in which a prompt's every row looks at keys, not its last alone
    query_width : numbers of a row of queries, heads times numbers of a head
    kv_bytes : of keys and values of one position of a layer
    window : positions that a row looks at, at most; None for all
    """

    layers: int
    whole_layers: int
    query_width: int
    kv_bytes: int
    window: int | None

    def keys(self, position: int) -> int:
        """Positions that the row at the end of so many looks at."""
        return position if self.window is None else min(position, self.window)

    def pairs(self, length: int) -> int:
        """Pairs of a query and a key in a prompt of so many tokens."""
        rising = self.keys(length)
        return rising * (rising + 1) // 2 + (length - rising) * rising


@dataclass(frozen=True)
class StepWork:
    """The least that a model's steps do, whatever the kernels.

    Attributes
    ----------
    weight_bytes : that a decoded token reads, as they are stored; of experts those of one token
    products : multiplications by weights for each token of a prompt
    chunk_products : those that only the last token of a chunk needs: the head, and the layers
        behind the last one that makes keys
    """

    weight_bytes: int
    products: int
    chunk_products: int
    attention: tuple[AttentionWork, ...]

    def token_bytes(self, position: int) -> int:
        """Bytes that a decoded token reads after so many others: weights, keys and values."""
        return self.weight_bytes + sum(
            one.layers * one.kv_bytes * one.keys(position) for one in self.attention
        )

    def prompt_operations(self, length: int, chunk: int) -> int:
        """Operations of a prompt that is read in chunks; a multiplication and an addition are two.

        Parameters
        ----------
        length : of the prompt, in tokens
        chunk : tokens that one forward takes, at most
        """
        chunks = -(-length // chunk)
        # Each pair takes a product by a key and one by a value for each number of a query.
        looks = sum(
            2 * one.whole_layers * one.query_width * one.pairs(length) for one in self.attention
        )
        return 2 * (self.products * length + self.chunk_products * chunks + looks)

    def to_json(self) -> JsonObject:
        """The entry of the metadata."""
        return {
            "weight_bytes": self.weight_bytes,
            "products": self.products,
            "chunk_products": self.chunk_products,
            _ATTENTION: [
                {
                    "layers": one.layers,
                    "whole_layers": one.whole_layers,
                    "query_width": one.query_width,
                    "kv_bytes": one.kv_bytes,
                    "window": one.window,
                }
                for one in self.attention
            ],
        }


def step_work(metadata: Mapping[str, object]) -> StepWork | None:
    """The work that a library's metadata tell; None for a library of before.

    ArtifactError for a damaged field.
    """
    if STEP_WORK not in metadata:
        return None
    fields = Fields(metadata[STEP_WORK], abi.METADATA, STEP_WORK)
    attention = []
    for value in fields.get(_ATTENTION, list):
        one = Fields(value, abi.METADATA, f"{STEP_WORK}.{_ATTENTION}")
        window = one.optional("window", int)
        layers, whole = one.size("layers"), one.get("whole_layers", int)
        if not 0 <= whole <= layers:
            raise one.damaged("whole_layers")
        if window is not None and window < 1:
            raise one.damaged("window")
        width, kv_bytes = one.size("query_width"), one.size("kv_bytes")
        attention.append(AttentionWork(layers, whole, width, kv_bytes, window))
    products = fields.get("products", int)
    if products < 0:
        raise fields.damaged("products")
    return StepWork(
        fields.size("weight_bytes"), products, fields.size("chunk_products"), tuple(attention)
    )
