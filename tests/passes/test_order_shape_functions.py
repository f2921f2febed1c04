"""Shape functions: sorted when their stores are independent, and equal ones are one."""

from functools import cache

import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from gemma4_compile.passes.order_shape_functions import OrderShapeFunctions


@cache
def before_module() -> tvm.IRModule:
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

    return Before


@cache
def expected_module() -> tvm.IRModule:
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

    return Expected


@pytest.mark.slow
def test_independent_stores_are_sorted_and_nothing_else_changes() -> None:
    after = tvm.transform.Sequential([OrderShapeFunctions()])(before_module())
    tvm.ir.assert_structural_equal(after, expected_module())


@cache
def repeated_module() -> tvm.IRModule:
    @I.ir_module
    class Repeated:
        @T.prim_func(private=True, s_tir=True)
        def shape_func(H: T.Buffer((T.int64(3),), "int64")) -> None:
            H[T.int64(1)] = T.int64(2) * H[T.int64(0)]
            H[T.int64(2)] = T.int64(3) * H[T.int64(0)]

        @T.prim_func(private=True, s_tir=True)
        def shape_func1(H: T.Buffer((T.int64(3),), "int64")) -> None:
            H[T.int64(2)] = T.int64(3) * H[T.int64(0)]
            H[T.int64(1)] = T.int64(2) * H[T.int64(0)]

        @T.prim_func(private=True, s_tir=True)
        def shape_func2(H: T.Buffer((T.int64(2),), "int64")) -> None:
            H[T.int64(1)] = T.int64(2) * H[T.int64(0)]

        @R.function
        def first(heap: R.Tensor((3,), "int64")) -> R.Tensor((3,), "int64"):
            R.func_attr({"relax.force_pure": True})
            cls = Repeated
            cls.shape_func(heap)
            return heap

        @R.function
        def second(heap: R.Tensor((3,), "int64"), other: R.Tensor((2,), "int64")) -> R.Tensor(
            (3,), "int64"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Repeated
            cls.shape_func1(heap)
            cls.shape_func2(other)
            return heap

    return Repeated


@cache
def merged_module() -> tvm.IRModule:
    @I.ir_module
    class Merged:
        @T.prim_func(private=True, s_tir=True)
        def shape_func(H: T.Buffer((T.int64(3),), "int64")) -> None:
            H[T.int64(1)] = T.int64(2) * H[T.int64(0)]
            H[T.int64(2)] = T.int64(3) * H[T.int64(0)]

        @T.prim_func(private=True, s_tir=True)
        def shape_func1(H: T.Buffer((T.int64(2),), "int64")) -> None:
            H[T.int64(1)] = T.int64(2) * H[T.int64(0)]

        @R.function
        def first(heap: R.Tensor((3,), "int64")) -> R.Tensor((3,), "int64"):
            R.func_attr({"relax.force_pure": True})
            cls = Merged
            cls.shape_func(heap)
            return heap

        @R.function
        def second(heap: R.Tensor((3,), "int64"), other: R.Tensor((2,), "int64")) -> R.Tensor(
            (3,), "int64"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Merged
            cls.shape_func(heap)
            cls.shape_func1(other)
            return heap

    return Merged


@pytest.mark.slow
def test_functions_that_are_equal_once_sorted_are_one() -> None:
    after = tvm.transform.Sequential([OrderShapeFunctions()])(repeated_module())
    tvm.ir.assert_structural_equal(after, merged_module())
    expected = tvm.IRModule.clone(merged_module())
    types = [
        {var.name_hint: str(var.ty) for var in mod.get_global_vars()} for mod in (after, expected)
    ]
    assert types[0] == types[1]
