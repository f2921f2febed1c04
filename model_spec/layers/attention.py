"""Self-attention of one layer: projections, norms, RoPE and the KV state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypedDict

from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.layers.kv_cache import KvTensors
from gemma4_compile.model_spec.layers.norm import Vector, take_last_row
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.attention_splits import CombineSplits
from gemma4_compile.operators.base import (
    Operator,
    TensorSpec,
    emit,
    emit_inplace,
)
from gemma4_compile.operators.heads import WHOLE, CachePart
from gemma4_compile.operators.picture_attention import LastVisibleRows
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import (
    ONE,
    Chunk,
    Few,
    Joint,
    One,
    OneOf,
    Rows,
    rows_of_extent,
)
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.operators.types import Index

FEW_HEADS = 8  # query heads, one or two blocks a row and split


@dataclass(frozen=True)
class JointSplits:
    """Splits of a layer's keys where rows are of several sequences.

    The rows fill the device already: fewer and longer splits norm fewer queries, and there is less
    to put together.

    Attributes
    ----------
    splits : at most
    max_blocks : splits times KV heads, at most
    grains : that a full layer's split has a multiple of, in place of one, with many query heads
    """

    splits: int
    max_blocks: int
    grains: int


@dataclass(frozen=True)
class AttentionOptions:
    """Splits of a decode step's keys, by the target's parallelism.

    Attributes
    ----------
    sliding_splits, full_splits : splits of a layer's keys by its kind, at most
    joint : where rows are of several sequences; None: as of one
    max_blocks : splits times KV heads, at most; None for any number
    split_channels : a split has keys of at least so many channels, and in multiples of them
    rounded_heads : channels of heads of which a chunk's attention over float16 keys has q and
        weights in float16, too
    """

    sliding_splits: int
    full_splits: int
    max_blocks: int | None = None
    split_channels: int = 1
    rounded_heads: tuple[int, ...] = ()
    joint: JointSplits | None = None

    def rounds(self, head_dim: int, cache_dtype: str) -> bool:
        """Whether a chunk's q and weights are rounded to float16, for matrix units."""
        return head_dim in self.rounded_heads and cache_dtype == "float16"

    def splits(self, plan: LayerPlan, rows: Rows = ONE) -> int:
        """Splits for a layer."""
        splits = self.splits_of(plan.window, plan.num_key_value_heads, plan.head_dim)
        if self.joint is None or not isinstance(rows, Joint):
            return splits
        blocks = self.joint.max_blocks // plan.num_key_value_heads
        return min(splits, self.joint.splits, max(1, blocks))

    def grain(self, plan: LayerPlan, rows: Rows = ONE) -> int:
        """Keys that a split has a multiple of."""
        grain = self.grain_of(plan.head_dim)
        is_many = plan.window is None and plan.num_attention_heads > FEW_HEADS
        is_longer = is_many and isinstance(rows, Joint)
        return grain * self.joint.grains if self.joint and is_longer else grain

    def splits_of(self, window: int | None, kv_heads: int, head_dim: int) -> int:
        """Splits by what they hang on; `window` is None for full attention."""
        splits = self.full_splits if window is None else self.sliding_splits
        if self.max_blocks is not None:
            splits = min(splits, max(1, self.max_blocks // kv_heads))
        if window is not None:
            splits = min(splits, -(-window // self.grain_of(head_dim)))
        return splits

    def splits_of_rows(
        self, window: int | None, kv_heads: int, head_dim: int, most_rows: int
    ) -> int:
        """Splits of the keys that any of a few rows sees: no longer than those of one row.

        A window of several rows is a few keys longer, for which all splits would grow by a grain.
        """
        splits = self.splits_of(window, kv_heads, head_dim)
        if window is None or splits == 1:
            return splits
        grain = self.grain_of(head_dim)
        keys = -(-window // (splits * grain)) * grain
        return max(splits, -(-(window + most_rows - 1) // keys))

    def grain_of(self, head_dim: int) -> int:
        """Keys that a split has a multiple of, for heads of so many channels."""
        return max(1, self.split_channels // head_dim)


class RotaryFields(TypedDict):
    """Fields of an operator that norms and rotates q, k and v."""

    pairs: int
    rotary_offset: int
    rotary_total: int
    eps: float
    owns_kv: bool
    value_is_key: bool


class CacheFields(TypedDict):
    """Fields of an operator that reads or writes K and V."""

    heads: int
    kv_heads: int
    head_dim: int
    cache_dtype: str
    cache_rows: int | None
    part: CachePart


class SplitFields(TypedDict):
    """Fields of an operator that attends in splits."""

    splits: int
    grain: int


@dataclass(frozen=True)
class AttentionContext:
    """What the layers of one call attend to.

    Attributes
    ----------
    kv : keys and values
    last_rows : (rows,) int32, the last row of the chunk that each row sees on sliding layers; None
        where that is the row itself. The chunk's last row never sees more than itself.
    cut_at : index of the layer behind which nobody reads other rows of a chunk than the last: it
        writes K and V of all, but only the last position attends; None for no layer
    """

    kv: KvTensors
    last_rows: nn.Tensor | None = None
    cut_at: int | None = None


def last_visible_rows(modality: nn.Tensor) -> nn.Tensor:
    """The last row of a chunk that each row sees where pictures see themselves: (n,) int32."""
    return emit(LastVisibleRows(), [modality], [(tuple(modality.shape), "int32")])[0]


def _emit_carried(
    operator: Operator,
    args: Sequence[nn.Tensor | tirx.IntImm],
    results: Sequence[TensorSpec],
    carried: Sequence[nn.Tensor],
) -> tuple[nn.Tensor, ...]:
    """Call an operator whose results are in the place of `carried` or, without them, new."""
    if not carried:
        return emit(operator, args, results)
    places = range(len(args), len(args) + len(carried))
    return emit_inplace(operator, [*args, *carried], list(places), results)


class Attention(nn.Module):
    """Attention as the layer's plan describes it.

    Parameters
    ----------
    prefix : of the parameters, ``layers.0.self_attn``
    plan : heads, head_dim, window, whose K and V
    eps : of the q, k and v norms
    activation_dtype : of the attention's result, and of K and V
    """

    def __init__(
        self,
        prefix: str,
        plan: LayerPlan,
        matrices: Matrices,
        eps: float,
        activation_dtype: str,
        options: AttentionOptions,
    ) -> None:
        self.plan = plan
        self.eps = eps
        self.activation_dtype = activation_dtype
        self.options = options
        self.qkv_proj = matrices.matrix(f"{prefix}.qkv_proj")
        self.q_norm = Vector(plan.head_dim)
        if plan.owns_kv:
            self.k_norm = Vector(plan.head_dim)
        self.o_proj = matrices.matrix(f"{prefix}.o_proj")

    def __call__(self, hidden: nn.Tensor, context: AttentionContext) -> nn.Tensor:
        """(rows, hidden_size) -> (rows, hidden_size) float32; one row at and behind `cut_at`."""
        kv, rows = context.kv, rows_of_extent(hidden.shape[0])
        qkv = self.qkv_proj.matmul(hidden, rows)
        if isinstance(rows, One) or kv.is_joint:
            return self.o_proj.matmul(self._combine(self._decode(qkv, kv), kv.rows_of_step), rows)
        q = self._prepare(qkv, kv, rows)
        if isinstance(rows, Chunk) and context.cut_at == self.plan.index:
            splits = self._in_splits(take_last_row(q), kv, ONE)
            return self.o_proj.matmul(self._combine(splits, ONE), ONE)
        return self.o_proj.matmul(self._chunk(q, kv, rows, context.last_rows), rows)

    def _rotary_fields(self, kv: KvTensors) -> RotaryFields:
        plan = self.plan
        return {
            "pairs": plan.rotary.pairs,
            "rotary_offset": plan.rotary.offset,
            "rotary_total": kv.layout.rotary_pairs,
            "eps": self.eps,
            "owns_kv": plan.owns_kv,
            "value_is_key": plan.value_is_key,
        }

    def _cache_fields(self, kv: KvTensors, part: CachePart = WHOLE) -> CacheFields:
        plan, slot = self.plan, kv.layout.slots[self.plan.kv_slot]
        return {
            "heads": plan.num_attention_heads,
            "kv_heads": plan.num_key_value_heads,
            "head_dim": plan.head_dim,
            "cache_dtype": kv.layout.dtype,
            "cache_rows": slot.rows,
            "part": part,
        }

    def _parts(self, kv: KvTensors) -> list[CachePart]:
        """The parts of the layer's keys and values, in order."""
        count = kv.layout.slots[self.plan.kv_slot].parts
        return [CachePart(index, count) for index in range(count)]

    def _emit_with_cache(
        self,
        operator: QkNormRopeCache | SplitAttention,
        qkv: nn.Tensor,
        kv: KvTensors,
        results: list[TensorSpec],
        carried: Sequence[nn.Tensor] = (),
        row: int = 0,
    ) -> tuple[nn.Tensor, ...]:
        """Call an operator that norms q, k and v; it writes K and V if the layer owns them.

        `carried` : the results of the part or row before, in whose place these are; without them
        new. `row` : of several sequences, where the launch is of one
        """
        plan, part = self.plan, operator.part.index
        norms = [self.q_norm.weight, *([self.k_norm.weight] if plan.owns_kv else ())]
        if isinstance(operator, QkNormRopeCache) and not operator.makes_q:
            norms = norms[1:]
        args = [qkv, *norms, kv.positions, kv.rotary]
        scalars = [tirx.IntImm("int64", row)] if isinstance(operator.rows, OneOf) else []
        if not plan.owns_kv:
            reads_cache = isinstance(operator, SplitAttention)
            cache = kv.get(plan.kv_slot, part, row) if reads_cache else ()
            return _emit_carried(operator, [*args, *cache, *scalars], results, carried)
        key, value = kv.get(plan.kv_slot, part, row)
        written: list[TensorSpec] = [(tuple(t.shape), t.dtype) for t in (key, value)]
        first, last = len(args), len(args) + 2 + len(scalars)
        places = range(last, last + len(results)) if carried else (-1 for _ in results)
        new_key, new_value, *rest = emit_inplace(
            operator,
            [*args, key, value, *scalars, *carried],
            [first, first + 1, *places],
            [*written, *results],
        )
        kv.put(plan.kv_slot, new_key, new_value, part, row)
        return tuple(rest)

    def _prepare(self, qkv: nn.Tensor, kv: KvTensors, rows: Rows) -> nn.Tensor:
        plan = self.plan
        width = plan.num_attention_heads * plan.head_dim
        made: list[nn.Tensor] = []
        for part in self._parts(kv) if plan.owns_kv else [WHOLE]:
            operator = QkNormRopeCache(
                rows=rows,
                has_copies=kv.has_copies,
                **self._cache_fields(kv, part),
                **self._rotary_fields(kv),
            )
            results: list[TensorSpec] = [((qkv.shape[0], width), "float32")]
            made += self._emit_with_cache(operator, qkv, kv, results if operator.makes_q else [])
        return made[0]

    def _chunk(
        self, q: nn.Tensor, kv: KvTensors, rows: Rows, last_rows: nn.Tensor | None
    ) -> nn.Tensor:
        sees_pictures = last_rows is not None and self.plan.window is not None
        results: list[TensorSpec] = [(tuple(q.shape), self.activation_dtype)]
        parts = self._parts(kv)
        rounds = self.options.rounds(self.plan.head_dim, kv.layout.dtype)
        made: tuple[nn.Tensor, ...] = ()
        if len(parts) > 1:
            results.append(((q.shape[0], self.plan.num_attention_heads, 2), "float32"))
        for part in parts:
            operator = PrefillAttention(
                sees_pictures=sees_pictures,
                rows=rows,
                window=self.plan.window,
                out_dtype=self.activation_dtype,
                has_copies=kv.has_copies,
                rounds_to_halves=part.is_whole and rounds,
                **self._cache_fields(kv, part),
            )
            args = [q, *kv.get(self.plan.kv_slot, part.index), kv.positions]
            if last_rows is not None and sees_pictures:
                args.append(last_rows)
            made = _emit_carried(operator, args, results, made)
        return made[0]

    def _split_fields(self, rows: Rows) -> SplitFields:
        splits, grain = self.options.splits(self.plan, rows), self.options.grain(self.plan, rows)
        return {"splits": splits, "grain": grain}

    def _split_specs(self, rows: Rows, extent: Index) -> list[TensorSpec]:
        heads, splits = self.plan.num_attention_heads, self.options.splits(self.plan, rows)
        lead = rows.lead(extent)
        o_partial = (*lead, splits, heads, self.plan.head_dim)
        return [(o_partial, self.activation_dtype), ((*lead, splits, heads, 2), "float32")]

    def _in_splits(self, q: nn.Tensor, kv: KvTensors, rows: Rows) -> tuple[nn.Tensor, ...]:
        """Positions whose q is prepared already, and whose keys are written.

        The last one of a chunk, or rows of several sequences of which some have more than one.
        """
        specs = self._split_specs(rows, q.shape[0])
        splits: tuple[nn.Tensor, ...] = ()
        for part in self._parts(kv):
            operator = SplitAttention(
                rows=rows,
                window=self.plan.window,
                **self._split_fields(rows),
                **self._cache_fields(kv, part),
            )
            args = [q, *kv.get(self.plan.kv_slot, part.index), kv.positions]
            splits = _emit_carried(operator, args, specs, splits)
        return splits

    def _decode(self, qkv: nn.Tensor, kv: KvTensors) -> tuple[nn.Tensor, ...]:
        """One position: norms, RoPE, the write of K and V, and the splits, in a launch a part.

        Or one of each of several sequences, in the same launch or in one for each of them; or some
        of each, whose keys and values are all written before.
        """
        if kv.are_shared and self.plan.owns_kv:
            return self._in_splits(self._prepare(qkv, kv, kv.rows_of_step), kv, kv.rows_of_step)
        specs = self._split_specs(kv.rows_of_step, qkv.shape[0])
        splits: tuple[nn.Tensor, ...] = ()
        for row, part in product(kv.launches, self._parts(kv)):
            operator = SplitAttention(
                rows=kv.rows_of_step,
                window=self.plan.window,
                query=NormedQuery(**self._rotary_fields(kv)),
                behind=kv.behind,
                **self._split_fields(kv.rows_of_step),
                **self._cache_fields(kv, part),
            )
            splits = self._emit_with_cache(operator, qkv, kv, specs, splits, row)
        return splits

    def _combine(self, splits: tuple[nn.Tensor, ...], rows: Rows) -> nn.Tensor:
        """Put the splits of each row together: (rows, heads * head_dim)."""
        heads, dim = self.plan.num_attention_heads, self.plan.head_dim
        count, dtype = self.options.splits(self.plan, rows), self.activation_dtype
        of_rows = Few(rows.most) if isinstance(rows, Joint | OneOf) else rows
        operator = CombineSplits(heads, dim, count, dtype, of_rows)
        extent = 1 if rows == ONE else splits[0].shape[0]
        return emit(operator, splits, [((extent, heads * dim), dtype)])[0]
