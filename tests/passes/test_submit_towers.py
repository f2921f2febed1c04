"""Launches of towers, which go to the GPU a few at a time."""

from functools import cache

import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from gemma4_compile.passes import submit_towers
from gemma4_compile.passes.submit_towers import SubmitTowers


@cache
def before_module() -> tvm.IRModule:
    @I.ir_module
    class Before:
        @T.prim_func(private=True, s_tir=True)
        def twice(
            x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")
        ) -> None:
            for i in range(4):
                y[i] = x[i] + x[i]

        @R.function
        def embed_image(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
            (4,), "float32"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Before
            cls.twice(x, y)
            cls.twice(y, x)
            cls.twice(x, y)
            return y

        @R.function
        def decode(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
            (4,), "float32"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Before
            cls.twice(x, y)
            cls.twice(y, x)
            return x

        @R.function
        def embed_texts(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
            (4,), "float32"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Before
            cls.twice(x, y)
            cls.twice(y, x)
            cls.twice(x, y)
            return y

    return Before


@cache
def expected_module() -> tvm.IRModule:
    @I.ir_module
    class Expected:
        @T.prim_func(private=True, s_tir=True)
        def twice(
            x: T.Buffer((T.int64(4),), "float32"), y: T.Buffer((T.int64(4),), "float32")
        ) -> None:
            for i in range(4):
                y[i] = x[i] + x[i]

        @R.function
        def embed_image(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
            (4,), "float32"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Expected
            cls.twice(x, y)
            cls.twice(y, x)
            R.call_packed("gemma4_submit", x, ty_args=[R.Tuple])
            cls.twice(x, y)
            return y

        @R.function
        def decode(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
            (4,), "float32"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Expected
            cls.twice(x, y)
            cls.twice(y, x)
            return x

        @R.function
        def embed_texts(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
            (4,), "float32"
        ):
            R.func_attr({"relax.force_pure": True})
            cls = Expected
            cls.twice(x, y)
            cls.twice(y, x)
            cls.twice(x, y)
            R.call_packed("gemma4_submit", y, ty_args=[R.Tuple])
            return y

    return Expected


def test_launches_of_towers_and_encoders_are_submitted_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submit_towers, "LAUNCHES", 2)
    monkeypatch.setattr(submit_towers, "ENCODER_LAUNCHES", 3)
    after = tvm.transform.Sequential([SubmitTowers()])(before_module())
    tvm.ir.assert_structural_equal(after, expected_module())
