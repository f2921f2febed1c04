"""The last check names the kernel, the limit and the number."""

from __future__ import annotations

import pytest
import tvm
from tvm.tirx.script import builder as T

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.linear import WeightLayout
from gemma4_compile.operators.lookup import OF_ROWS, Embedding
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.rows import CHUNK, ONE
from gemma4_compile.operators.tir import function, store
from gemma4_compile.passes.check_limits import check_limits, kernel_use
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels import make_kernel
from gemma4_compile.targets.kernels.common.blocks import barrier, launch, shared
from gemma4_compile.targets.spec import TargetSpec

WEBGPU = target_spec("webgpu")


def kernel(threads: int, shared_floats: int, buffers: int, elements: int) -> tvm.IRModule:
    """A kernel that asks for just so much."""
    with function(scheduled=True) as build:
        arguments = [build.arg(f"b{i}", (elements,), "float32") for i in range(buffers)]
        with launch(threads, 1) as (_, _, thread):
            memory = shared((shared_floats,))
            store(memory, arguments[0][thread], thread)
            barrier()
            store(arguments[-1], memory[0], thread)
    return tvm.IRModule({"greedy": build.result})


def test_reads_what_a_kernel_asks_for() -> None:
    use = kernel_use("k", kernel(64, 256, 3, 1000)["greedy"])
    assert (use.threads, use.shared_bytes, use.buffers) == (64, 1024, 3)
    assert use.largest_binding_bytes == 4000
    assert use.grid == (1, 1, 1)


def test_a_table_counts_as_a_whole() -> None:
    layout = WeightLayout(4, "float16", 32, 64, (128, 96))
    operator = Embedding(CHUNK, layout, 0, 1.0, False, OF_ROWS)
    use = kernel_use("k", make_kernel(operator, WEBGPU))
    assert use.largest_binding_bytes == 128 * 64 // 2
    assert use.buffers == 6


def test_memory_of_all_arrays_counts() -> None:
    with function(scheduled=True) as build:
        argument = build.arg("b", (64,), "float32")
        with launch(64, 1) as (_, _, thread):
            memories = [shared((size,)) for size in (4096, 4096, 1)]
            for memory in memories:
                store(memory, argument[thread], 0)
            barrier()
            store(argument, memories[0][0] + memories[1][0] + memories[2][0], thread)
    use = kernel_use("k", build.result)
    assert use.shared_bytes == 32772
    with pytest.raises(LoweringError, match="32772 bytes of shared memory"):
        check_limits(tvm.IRModule({"greedy": build.result}), WEBGPU)


def test_each_of_several_launches_has_its_own_memory() -> None:
    with function(scheduled=True) as build:
        argument = build.arg("b", (64,), "float32")
        size = build.scalar_arg("size")
        sides = ((T.Then, 64, 8192, 3), (T.Else, 256, 4096, 5))
        with T.If(size < 2):
            for side, threads, floats, blocks in sides:
                with side(), launch(threads, blocks) as (_, _, thread):
                    memory = shared((floats,))
                    store(memory, argument[0], thread)
                    barrier()
                    store(argument, memory[0], thread)
    use = kernel_use("k", build.result)
    assert (use.threads, use.shared_bytes, use.grid) == (256, 32768, (5, 1, 1))


def test_kernel_at_every_limit_is_accepted() -> None:
    check_limits(kernel(256, 8192, 10, 1 << 25), WEBGPU)


@pytest.mark.parametrize(
    ("module", "asked", "limit"),
    [
        (kernel(512, 64, 2, 512), "512 threads per block", "256"),
        (kernel(64, 8193, 2, 512), "32772 bytes of shared memory", "32768"),
        (kernel(64, 64, 11, 512), "11 storage buffers", "10"),
        (kernel(64, 64, 2, (1 << 25) + 1), "134217732 bytes in one binding", "134217728"),
    ],
)
def test_kernel_over_a_limit_is_named(module: tvm.IRModule, asked: str, limit: str) -> None:
    with pytest.raises(LoweringError) as error:
        check_limits(module, WEBGPU)
    assert "`greedy`" in str(error.value)
    assert asked in str(error.value)
    assert f"allows {limit}" in str(error.value)
    assert error.value.hint


def blocks(x: int, y: int) -> tvm.IRModule:
    """A kernel of so many blocks."""
    with function(scheduled=True) as build:
        out = build.arg("out", (64,), "float32")
        with launch(64, x, y) as (_, _, thread):
            store(out, out[thread], thread)
    return tvm.IRModule({"greedy": build.result})


def test_axes_of_the_grid_have_limits_of_their_own() -> None:
    check_limits(blocks(65_535, 65_535), WEBGPU)
    with pytest.raises(LoweringError, match="65536 blocks along x"):
        check_limits(blocks(65_536, 1), WEBGPU)
    cuda = target_spec("cuda")
    check_limits(blocks(1 << 20, 65_535), cuda)
    with pytest.raises(LoweringError, match="65536 blocks along y or z"):
        check_limits(blocks(1, 65_536), cuda)


def test_cpu_has_no_limits() -> None:
    check_limits(kernel(512, 8193, 11, 1 << 26), target_spec("cpu"))


@pytest.mark.parametrize("spec", [WEBGPU, target_spec("webgpu", "compat")])
def test_our_kernels_follow_the_limits(spec: TargetSpec) -> None:
    func = make_kernel(RmsNorm(ONE, 4096, 1e-6, "float16"), spec)
    assert kernel_use("norm", func).threads == spec.max_threads_per_block
