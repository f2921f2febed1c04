"""Kernel arguments become vectors where every access is one, and nowhere else."""

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import split_host_device_mods
from tvm.tirx.script import builder as T

from gemma4_compile.operators.tir import LocalVar, bind, function, i32, store
from gemma4_compile.passes.lowering import device_pipeline
from gemma4_compile.targets import target_spec
from gemma4_compile.targets.kernels.common.blocks import launch

ROWS, COLS = 8, 64


def kernel(
    read_one: bool = False, offset: int = 0, cols: int = COLS, lanes: int = 4
) -> tirx.PrimFunc:
    """Copies rows of `w` four elements at a time to `y`, and one element of `x` a thread to `z`.

    Parameters
    ----------
    lanes : of `w` that a thread reads at a time: as many vectors as make four
    """
    with function(scheduled=True) as build:
        w = build.arg("w", (ROWS, cols), "uint32")
        x = build.arg("x", (ROWS, COLS), "float16")
        y = build.arg("y", (ROWS, cols), "uint32")
        z = build.arg("z", (ROWS,), "float16")
        with launch(8, ROWS) as (block, _, thread):
            column = bind(thread * 4)
            for at in range(0, 4, lanes):
                part = bind(w[block, T.ramp(column + offset + at, 1, lanes)])
                T.buffer_store(y, part, [block, T.ramp(column + at, 1, lanes)])
            store(z, x[block, thread], block)
            if read_one:
                store(y, w[block, thread], block, thread)
    return build.result


def lowered_kernel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel as the code generator gets it."""
    target = target_spec("webgpu").tvm_target()
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    lowering, _, finalize_device = device_pipeline()
    module = lowering(tirx.transform.BindTarget(target)(module))
    _, device = split_host_device_mods(module)
    (kernels,) = device.values()
    (kernel,) = finalize_device()(kernels).functions.values()
    return kernel


def argument_types(func: tirx.PrimFunc) -> dict[str, str]:
    """Name and element type of the arguments of a lowered kernel."""
    kernel = lowered_kernel(func)
    pointers = [param for param in kernel.params if isinstance(param.ty, tvm.ir.PointerType)]
    return {param.name: str(param.ty.element_type) for param in pointers}


def test_only_arguments_that_are_accessed_by_fours_become_vectors() -> None:
    assert argument_types(kernel()) == {
        "w_ptr": "uint32x4",
        "x_ptr": "float16",
        "y_ptr": "uint32x4",
        "z_ptr": "float16",
    }


def test_arguments_that_are_accessed_by_twos_become_vectors_of_two() -> None:
    types = argument_types(kernel(lanes=2, offset=2))

    assert (types["w_ptr"], types["y_ptr"]) == ("uint32x2", "uint32x2")


def test_vectors_of_two_sizes_keep_an_argument_scalar() -> None:
    with function(scheduled=True) as build:
        w = build.arg("w", (ROWS, COLS), "uint32")
        y = build.arg("y", (ROWS, COLS), "uint32")
        with launch(8, ROWS) as (block, _, thread):
            column = bind(thread * 4)
            T.buffer_store(y, w[block, T.ramp(column, 1, 4)], [block, T.ramp(column, 1, 4)])
            pair = bind(w[block, T.ramp(column, 1, 2)])
            T.buffer_store(y, pair, [block, T.ramp(column + 2, 1, 2)])

    types = argument_types(build.result)

    assert (types["w_ptr"], types["y_ptr"]) == ("uint32", "uint32")


def test_one_other_access_keeps_an_argument_scalar() -> None:
    types = argument_types(kernel(read_one=True))

    assert (types["w_ptr"], types["y_ptr"]) == ("uint32", "uint32")


def test_an_index_that_is_no_multiple_of_four_keeps_an_argument_scalar() -> None:
    assert argument_types(kernel(offset=2))["w_ptr"] == "uint32"


def test_rows_that_do_not_begin_at_a_multiple_of_four_keep_an_argument_scalar() -> None:
    types = argument_types(kernel(cols=COLS + 2))

    assert (types["w_ptr"], types["y_ptr"]) == ("uint32", "uint32")


def test_an_index_keeps_the_value_that_a_register_had_when_it_was_named() -> None:
    with function(scheduled=True) as build:
        w = build.arg("w", (COLS,), "uint32")
        y = build.arg("y", (COLS,), "uint32")
        with launch(1, 1):
            cell = LocalVar("int32", i32(1))
            first = bind(cell.value)
            cell.set(i32(2))
            quad = bind(w[T.ramp(first * 4, 1, 4)])
            T.buffer_store(y, quad, [T.ramp(bind(cell.value) * 4, 1, 4)])

    kernel = lowered_kernel(build.result)

    loads_inside = []

    def visit(load: tvm.ir.TensorLoad) -> None:
        inner: list[tvm.ir.TensorLoad] = []
        for index in load.indices:
            tvm_ffi.structural_walk(index, [(tvm.ir.TensorLoad, inner.append)])
        loads_inside.extend(inner)

    tvm_ffi.structural_walk(kernel.body, [(tvm.ir.TensorLoad, visit)])
    assert not loads_inside
