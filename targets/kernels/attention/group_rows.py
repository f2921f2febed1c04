"""Rows of a chunk's attention where all query heads of a KV head are rows of one block.

Position by position and head by head, so that neither end of what a row sees falls from one row to
the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx

from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.tir import FunctionBuilder, bind, i32, materialize
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.attention.prefill import PrefillOperands
from gemma4_compile.targets.kernels.attention.prefill_shape import ChunkOperator


@dataclass(frozen=True)
class GroupRows:
    """The rows of one KV head.

    Attributes
    ----------
    args : of the kernel, and where the block begins in them
    """

    operator: ChunkOperator
    args: PrefillOperands

    @property
    def group(self) -> int:
        """Query heads of the KV head."""
        return self.operator.heads // self.operator.kv_heads

    def token(self, row: Expr) -> Expr:
        """The chunk's row that a row of the block belongs to, before the end of the chunk."""
        return materialize(tirx.min(tirx.floordiv(row, self.group), self.args.last_token))

    def head(self, row: Expr) -> Expr:
        """The query head of a row."""
        return self.args.first_head + tirx.floormod(row, self.group)

    def seen_by(self, token: Expr) -> tuple[Expr, Expr]:
        """The first key that a row of the chunk sees, and the one after its last."""
        position = materialize(self.args.position(token))
        end = self.args.key_end(token)
        first = materialize(self.operator.first_key(position))
        return first, materialize(position + 1 if end is None else end)


@dataclass(frozen=True)
class GroupArguments:
    """The arguments of one kernel.

    Attributes
    ----------
    count : rows of the chunk
    """

    operator: PrefillAttention
    count: Index
    q: Buffer
    key: Buffer
    value: Buffer
    positions: Buffer
    last_rows: Buffer | None
    out: Buffer

    @classmethod
    def declare(cls, build: FunctionBuilder, operator: PrefillAttention) -> GroupArguments:
        """Declare the arguments, in the definition's order, of a function that has none yet."""
        n, width = operator.rows.extent(), operator.heads * operator.head_dim
        cache = operator.cache.shape()
        return cls(
            operator,
            n,
            build.arg("q", (n, width), "float32"),
            build.arg("key", cache, operator.cache_dtype),
            build.arg("value", cache, operator.cache_dtype),
            build.arg("positions", (4,), "int32"),
            operator.declare_last_rows(build, n),
            build.arg("out", (n, width), operator.out_dtype),
        )

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.operator.heads // self.operator.kv_heads

    def tiles(self, rows: int) -> Expr:
        """Blocks of so many rows."""
        return tirx.floordiv(self.count * self.group + (rows - 1), rows)

    def rows_of(self, g: Expr, turn: Expr, rows: int) -> tuple[GroupRows, Expr, Expr]:
        """A block's rows; the first one's number and that behind the chunk's last one.

        Blocks are of so many rows, and those with the most keys begin first.
        """
        end_row = bind(i32(self.count) * self.group)
        tile = tirx.floordiv(end_row + (rows - 1), rows) - 1 - turn
        first_row = bind(tile * rows)
        last_token = bind(i32(self.count) - 1)
        lowest = materialize(self.positions[0]) if self.operator.has_copies else None
        offset = materialize(self.positions[2] - i32(self.count))
        args = PrefillOperands(
            q=self.q,
            key=self.key,
            value=self.value,
            first_head=g * self.group,
            g=g,
            first_token=bind(tirx.floordiv(first_row, self.group)),
            last_token=last_token,
            offset=offset,
            last_rows=self.last_rows,
            lowest=lowest,
        )
        return GroupRows(self.operator, args), first_row, end_row
