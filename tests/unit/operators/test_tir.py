"""Loops written with the small words, compiled for the CPU and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import (
    FunctionBuilder,
    LocalVar,
    bind,
    function,
    i32,
    materialize,
    store,
    when,
)
from gemma4_compile.operators.types import Buffer, Expr, Index

COUNT = 6
Body = Callable[[Buffer, Buffer], None]


def made(body: Body, scheduled: bool = True) -> tirx.PrimFunc:
    """A function of x and y, (COUNT,) int32."""
    with function(scheduled) as build:
        x, y = build.arg("x", (COUNT,), "int32"), build.arg("y", (COUNT,), "int32")
        body(x, y)
    return build.result


def run(func: tirx.PrimFunc) -> list[int]:
    """`y` after a call with x = 0, 1, 2 ... and y = -1, -1 ..."""
    module = tvm.IRModule({"f": func.with_attr("global_symbol", "f")})
    x = tvm.runtime.tensor(np.arange(COUNT, dtype=np.int32))
    y = tvm.runtime.tensor(np.full(COUNT, -1, np.int32))
    tvm.compile(module, target="llvm")["f"](x, y)
    return [int(value) for value in y.numpy()]


def test_stores_and_conditions() -> None:
    def body(x: Buffer, y: Buffer) -> None:
        with T.serial(0, COUNT) as i, when(x[i] < 3):
            store(y, x[i] * 10, i)

    assert run(made(body)) == [0, 10, 20, -1, -1, -1]


def test_a_local_variable_keeps_what_was_set_last() -> None:
    def body(x: Buffer, y: Buffer) -> None:
        total = LocalVar("int32", i32(100))
        with T.serial(0, COUNT) as i:
            total.add(x[i])
            store(y, total.value, i)
        total.set(i32(7))
        store(y, total.value, 0)

    assert run(made(body)) == [7, 101, 103, 106, 110, 115]


def test_a_variable_without_a_first_value_takes_one_later() -> None:
    def body(x: Buffer, y: Buffer) -> None:
        value = LocalVar("int32")
        value.set(x[2])
        store(y, value.value, 1)

    assert run(made(body))[:3] == [-1, 2, -1]


@pytest.mark.parametrize("name", [bind, materialize])
def test_a_named_value_is_that_of_its_place(name: Callable[[Expr], Expr]) -> None:
    def body(x: Buffer, y: Buffer) -> None:
        before = name(x[0] + 5)
        store(x, i32(50), 0)
        after = name(x[0] + 5)
        store(y, before, 0)
        store(y, after + before, 1)

    assert run(made(body))[1] == 60


def test_what_is_materialized_is_a_variable_in_the_text() -> None:
    def body(x: Buffer, y: Buffer) -> None:
        value = materialize(x[0] * 12345)
        store(y, value, 0)
        store(y, value, 1)

    assert made(body).script().count("12345") == 1


def test_arguments_come_in_the_order_in_which_they_are_declared() -> None:
    with function(scheduled=False) as build:
        first = build.arg("first", (2, 3), "float16")
        build.arg("second", (tirx.Var("n", "int64"),), "int32")
        scalar = build.scalar_arg("third")
        store(first, tirx.const(0, "float16"), scalar, 1)
    params = build.result.params
    assert [param.name for param in params] == ["first", "second", "third"]
    assert [int(size) for size in first.shape] == [2, 3]
    assert (str(params[0].dtype), str(params[2].ty.dtype)) == ("float16", "int64")


@pytest.mark.parametrize("scheduled", [True, False])
def test_only_a_finished_function_is_left_alone_by_schedules(scheduled: bool) -> None:
    def body(x: Buffer, y: Buffer) -> None:
        store(y, x[0], 0)

    func = made(body, scheduled)
    assert bool(func.attrs.get("tirx.is_scheduled", False)) is scheduled
    assert func.attrs["tirx.noalias"]
    assert isinstance(func.body, SBlockRealize) is not scheduled
    assert run(func) == [0, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("given", [5, tirx.Var("n", "int64"), tirx.Var("n", "int32")])
def test_numbers_and_wider_expressions_become_int32(given: Index) -> None:
    made: Any = i32(given)
    assert str(made.ty.dtype) == "int32"


def test_a_builder_is_what_the_block_gets() -> None:
    with function(scheduled=True) as build:
        assert isinstance(build, FunctionBuilder)
        store(build.arg("x", (1,), "int32"), i32(1), 0)
    assert isinstance(build.result, tirx.PrimFunc)
