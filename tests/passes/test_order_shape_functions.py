"""Shape functions: sorted when their stores are independent, else as they were."""

import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from gemma4_compile.passes.order_shape_functions import OrderShapeFunctions


@I.ir_module
class Before:
    @T.prim_func(private=True, s_tir=True)
    def shape_func(H: T.Buffer((T.int64(4),), "int64")) -> None:
        H[T.int64(3)] = T.int64(4) * H[T.int64(0)]
        H[T.int64(1)] = T.int64(2) * H[T.int64(0)]
        H[T.int64(2)] = T.int64(3) * H[T.int64(0)]

    @T.prim_func(private=True, s_tir=True)
    def shape_func1(H: T.Buffer((T.int64(4),), "int64")) -> None:
        H[T.int64(2)] = T.int64(4) * H[T.int64(0)]
        H[T.int64(1)] = T.int64(2) * H[T.int64(2)]

    @T.prim_func(private=True, s_tir=True)
    def kernel(H: T.Buffer((T.int64(4),), "int64")) -> None:
        H[T.int64(3)] = T.int64(4)
        H[T.int64(1)] = T.int64(2)


@I.ir_module
class Expected:
    @T.prim_func(private=True, s_tir=True)
    def shape_func(H: T.Buffer((T.int64(4),), "int64")) -> None:
        H[T.int64(1)] = T.int64(2) * H[T.int64(0)]
        H[T.int64(2)] = T.int64(3) * H[T.int64(0)]
        H[T.int64(3)] = T.int64(4) * H[T.int64(0)]

    @T.prim_func(private=True, s_tir=True)
    def shape_func1(H: T.Buffer((T.int64(4),), "int64")) -> None:
        H[T.int64(2)] = T.int64(4) * H[T.int64(0)]
        H[T.int64(1)] = T.int64(2) * H[T.int64(2)]

    @T.prim_func(private=True, s_tir=True)
    def kernel(H: T.Buffer((T.int64(4),), "int64")) -> None:
        H[T.int64(3)] = T.int64(4)
        H[T.int64(1)] = T.int64(2)


def test_independent_stores_are_sorted_and_nothing_else_changes() -> None:
    after = tvm.transform.Sequential([OrderShapeFunctions()])(Before)
    tvm.ir.assert_structural_equal(after, Expected)
