"""Choice of a position's experts: a step of every kernel that knows the router's scores.

An expert's place among all is the number of experts before it, so the choice takes one round.
Meaning: `TopKExperts` in gemma4_compile/operators/moe.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import LocalVar, bind, i32, store, when
from gemma4_compile.operators.types import Buffer, Expr, Index
from gemma4_compile.targets.kernels.common.blocks import Block, add, barrier, shared, strided, tree
from gemma4_compile.targets.kernels.common.vectors import Vectors

AHEAD = 8  # vectors of scores that a thread has under way


def choose(block: Block, scores: Buffer, experts: int, top_k: int, position: Index = 0) -> Buffer:
    """The `top_k` highest scores, of equal ones the lower index; all threads together.

    Parameters
    ----------
    scores : (any, experts or more) float32, an argument, or (experts,) in shared memory, complete
    position : row of the argument

    Returns
    -------
    Buffer
        Ids (top_k,) int32 in shared memory, complete.
    """
    row = (position,) if len(scores.shape) > 1 else ()
    vectors = Vectors.dividing(experts)
    groups = experts // vectors.size
    ahead = AHEAD if groups % AHEAD == 0 else 1
    chosen = shared((top_k,), "int32")
    with strided(block, experts) as e:
        own, before = bind(read_score(scores, row, e, vectors)), LocalVar("int32", i32(0))
        with T.serial(0, groups // ahead) as iteration:
            first = bind(iteration * ahead)
            places = [vectors.at(first + index) for index in range(ahead)]
            values = [bind(scores[(*row, place)]) for place in places]
            others = [lane for value in values for lane in vectors.lanes(value)]
            for index, other in enumerate(others):
                is_lower = first * vectors.size + index < e
                precedes = (other > own) | ((other == own) & is_lower)
                before.add(tirx.Select(precedes, i32(1), i32(0)))
        with when(before.value < top_k):
            store(chosen, e, before.value)
    barrier()
    return chosen


def read_score(scores: Buffer, row: tuple[Index, ...], e: Expr, vectors: Vectors) -> Expr:
    """An item's score: out of a vector of an argument, so that all its reads are wide."""
    if not row or vectors.size == 1:
        return scores[(*row, e)]
    lanes = vectors.lanes(bind(scores[(*row, vectors.at(tirx.floordiv(e, vectors.size)))]))
    place, own = bind(tirx.floormod(e, vectors.size)), lanes[0]
    for number, lane in enumerate(lanes[1:], 1):
        own = tirx.Select(place == number, lane, own)
    return own


def weight_of(
    own: Expr, ids: Sequence[Expr], score_of: Callable[[Expr], Expr], expert_scale: Buffer
) -> Expr:
    """The weight of expert `own`, one of the chosen `ids`; the highest score comes first.

    The softmax's sum over all experts cancels: only the shares of the chosen of each other remain.
    """
    scores = [bind(score_of(e)) for e in ids]
    total = tree([tirx.exp(score - scores[0]) for score in scores], add)
    return tirx.exp(score_of(own) - scores[0]) / total * expert_scale[own]
