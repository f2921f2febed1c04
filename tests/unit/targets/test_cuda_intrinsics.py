"""CUDA's words for products of bytes, choices between vectors, and exchanges between threads."""

from __future__ import annotations

import re

import tvm
from tvm import tirx
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import function, store
from gemma4_compile.passes.lowering import tir_pipeline
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import launch, local
from gemma4_compile.targets.kernels.common.builtins import dot4, from_neighbour, nearest
from gemma4_compile.targets.kernels.tiles.tensor_cores import (
    LOAD,
    MULTIPLY_ADD,
    address,
    load_matrices,
    multiply_add,
    shared_pieces,
)


def cuda_source(func: tirx.PrimFunc) -> str:
    spec = target_spec("cuda")
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(module, spec.tvm_target(), pipeline=tir_pipeline(spec))
    (device,) = built.imports
    return str(device.inspect_source())


def test_a_product_of_bytes_adds_in_the_same_instruction() -> None:
    with function(scheduled=True) as build:
        x = build.arg("x", (64,), "uint32")
        y, z = (build.arg(name, (64,), "int32") for name in "yz")
        with launch(64, 1) as (_, _, thread):
            store(y, y[thread] + dot4(x[thread], x[thread]), thread)
            store(z, dot4(x[thread], x[thread]), thread)
    source = cuda_source(build.result)
    assert "dot4I8Packed" not in source
    first, second = re.findall(r"__dp4a\((.*)\);", source)
    assert first.endswith("y_ptr[((int)threadIdx.x)])") or "y_ptr" in first.split(",")[-1]
    assert second.endswith(", 0")


def test_a_vector_of_products_adds_lane_by_lane() -> None:
    with function(scheduled=True) as build:
        x = build.arg("x", (4, 64), "uint32")
        y = build.arg("y", (256,), "int32")
        with launch(64, 1) as (_, _, thread):
            products = [dot4(x[0, thread], x[lane, thread]) for lane in range(4)]
            place = T.ramp(thread * 4, 1, 4)
            store(y, tirx.Shuffle(products, list(range(4))) + y[place], place)
    source = cuda_source(build.result)
    calls = re.findall(r"__dp4a\(", source)
    added = re.findall(r"\)\.([xyzw])[,)]", source.split("make_int4", 1)[1])
    assert len(calls) == 4
    assert added == ["x", "y", "z", "w"], source


def test_one_condition_chooses_between_vectors() -> None:
    with function(scheduled=True) as build:
        x = build.arg("x", (256,), "float32")
        y = build.arg("y", (256,), "float32")
        with launch(64, 1) as (_, _, thread):
            quad = x[T.ramp(thread * 4, 1, 4)]
            nothing = tirx.Broadcast(tirx.const(0.0, "float32"), 4)
            store(y, tirx.Select(thread < 60, quad, nothing), T.ramp(thread * 4, 1, 4))
    source = cuda_source(build.result)
    assert re.search(r"if \(\(\(int\)threadIdx\.x\) < 60\) \{\n\s*\w+ = x_ptr", source)


def test_neighbours_exchange_within_a_warp() -> None:
    with function(scheduled=True) as build:
        x = build.arg("x", (64,), "float32")
        y = build.arg("y", (64,), "float32")
        with launch(64, 1) as (_, _, thread):
            store(y, from_neighbour(x[thread], 4), thread)
    source = cuda_source(build.result)
    assert "subgroupShuffleXor" not in source
    assert re.search(r"= __shfl_xor_sync\(__activemask\(\), x_ptr\[.*\], 4\);", source)


def test_whole_numbers_are_the_nearest_and_of_two_the_even() -> None:
    with function(scheduled=True) as build:
        x = build.arg("x", (64,), "float32")
        y = build.arg("y", (64,), "float32")
        with launch(64, 1) as (_, _, thread):
            store(y, nearest(x[thread]), thread)
    source = cuda_source(build.result)
    assert re.search(r"= rintf\(x_ptr\[.*\]\);", source)
    assert "round(" not in source, "which takes the one that is farther from 0"


def test_calls_of_tensor_cores_bring_their_text_once() -> None:
    with function(scheduled=True) as build:
        x = build.arg("x", (64,), "uint32")
        y = build.arg("y", (64, 4), "float32")
        with launch(32, 1) as (_, _, thread):
            tile, sums = shared_pieces(64), local((4,))
            for _ in range(2):
                load_matrices(address(tile, thread), address(tile, 0))
                multiply_add(address(sums, 0), address(x, 0), address(x, 4))
            store(y, sums[0], thread, 0)
    source = cuda_source(build.result)
    # A product is one instruction in each image.
    for name, instruction, count in ((LOAD, "ldmatrix.sync", 1), (MULTIPLY_ADD, "mma.sync", 2)):
        assert source.count(f"void {name}(") == 1
        assert source.count(f"  {name}((") == 2
        assert source.count(instruction) == count
    assert "gemma4_decode_bytes" not in source, "what nothing calls is left out"
