"""Built-in functions of the device language that TVM has no word for.

Kernels say them in WGSL's words; a target with other words has a pass that translates.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.types import Expr

DOT4 = "dot4I8Packed"
EXCHANGE = "subgroupShuffleXor"
SMALLEST = "subgroupMin"
NEAREST = "round"
HALVES = "gemma4_halves"
WAIT_FOR_LAUNCHES = "gemma4_wait_for_launches"


def dot4(a: Expr, b: Expr) -> Expr:
    """Sum of the products of four signed bytes of two uint32: int32."""
    return tirx.call_pure_extern("int32", DOT4, a, b)


def nearest(value: Expr) -> Expr:
    """The nearest whole number of a float32; of two equally near ones the even."""
    return tirx.call_pure_extern("float32", NEAREST, value)


def from_neighbour(value: Expr, distance: int) -> Expr:
    """A float32 of the thread whose number in the subgroup differs in this bit."""
    # Not pure: no pass may move it under a condition, where threads would be missing.
    bit = tirx.const(distance, "uint32")
    return tirx.call_extern("float32", EXCHANGE, value, bit)


def halves(word: Expr) -> Expr:
    """The two float16 of a uint32, the one in its lower bits first: float32x2.

    WGSL has no such word that keeps the smallest numbers; wgsl_halves.py has the function.
    """
    return tirx.call_pure_extern("float32x2", HALVES, word)


def wait_for_launches() -> None:
    """Here at the latest what the launches before this one made is there.

    CUDA alone (targets/cuda_programmatic.py). A kernel with it says for itself that what it reads
    ahead of it is of earlier calls; every thread gets to one, on whatever way.
    """
    T.evaluate(tirx.call_extern("void", WAIT_FOR_LAUNCHES))


def smallest_of_subgroup(value: Expr) -> Expr:
    """The smallest float32 of a whole subgroup's threads; each of them gets it."""
    return tirx.call_extern("float32", SMALLEST, value)
