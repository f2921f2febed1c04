"""Refuse kernels that break a limit of the target; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock
from tvm.tirx.buffer import is_buffer_var

from gemma4_compile.errors import LoweringError
from gemma4_compile.operators.examples import rows_of_table
from gemma4_compile.targets.spec import TargetSpec

SHARED, ASKED = "shared", "shared.dyn"  # scopes


@dataclass(frozen=True)
class KernelUse:
    """Demands of a function's kernel on the device; of several kernels, the largest demands.

    Attributes
    ----------
    threads : threads per block, 1 if it launches none
    shared_bytes : shared memory per block
    asked_bytes : shared memory per block that the launch asks for
    buffers : bound buffers
    largest_binding_bytes : largest buffer of static shape, or of a table that is there as a whole
    grid : blocks along x, y and z; 1 where their number is not known
    """

    name: str
    threads: int
    shared_bytes: int
    asked_bytes: int
    buffers: int
    largest_binding_bytes: int
    grid: tuple[int, ...]


def _static_bytes(buffer: tirx.Buffer) -> int:
    shape = [
        int(dim) if isinstance(dim, int | tirx.IntImm) else rows_of_table(dim)
        for dim in buffer.shape
    ]
    if None in shape:
        return 0
    return prod(dim for dim in shape if dim is not None) * _item_bytes(str(buffer.dtype))


def _item_bytes(dtype: str) -> int:
    return int(tvm.DataType(dtype).itemsize)


def kernel_use(name: str, func: tirx.PrimFunc) -> KernelUse:
    """Read a scheduled PrimFunc's launches, shared memory and buffers."""
    found: list[tirx.AttrStmt] = []

    def visit(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent" and str(node.node.thread_tag) == "blockIdx.x":
            found.append(node)

    tvm_ffi.structural_walk(func.body, [(tirx.AttrStmt, visit)])
    # Memory may lie outside of the launch where there is one.
    launches = [_launch_use(body) for body in (found if len(found) > 1 else [func.body])]
    grids = zip(*(launch.grid for launch in launches), strict=True)
    buffers = [param for param in func.params if is_buffer_var(param)]
    return KernelUse(
        name=name,
        threads=max(launch.threads for launch in launches),
        shared_bytes=max(launch.shared_bytes for launch in launches),
        asked_bytes=max(launch.asked_bytes for launch in launches),
        buffers=len(buffers),
        largest_binding_bytes=max((_static_bytes(buffer) for buffer in buffers), default=0),
        grid=tuple(max(extents) for extents in grids),
    )


@dataclass(frozen=True)
class _LaunchUse:
    threads: int
    shared_bytes: int
    asked_bytes: int
    grid: tuple[int, ...]


def _launch_use(body: tirx.Stmt) -> _LaunchUse:
    threads: dict[str, int] = {}
    shared: dict[str, int] = {SHARED: 0, ASKED: 0}

    def extent(tag: str, value: tvm.ir.Expr | int) -> None:
        if isinstance(value, int | tirx.IntImm):
            threads[tag] = max(threads.get(tag, 1), int(value))

    def allocated(buffer: tirx.Buffer) -> None:
        if (scope := str(buffer.scope())) in shared:
            shared[scope] += _static_bytes(buffer)  # names may repeat

    def visit_attr(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            extent(str(node.node.thread_tag), node.value)

    def visit_for(node: tirx.For) -> None:
        if node.thread_binding is not None:
            extent(str(node.thread_binding.thread_tag), node.extent)

    def visit_block(node: SBlock) -> None:
        for buffer in node.alloc_buffers:
            allocated(buffer)

    def visit_alloc(node: tirx.AllocBuffer) -> None:
        allocated(node.buffer)

    tvm_ffi.structural_walk(
        body,
        [
            (tirx.AttrStmt, visit_attr),
            (tirx.For, visit_for),
            (SBlock, visit_block),
            (tirx.AllocBuffer, visit_alloc),
        ],
        order="post",
    )
    return _LaunchUse(
        threads=prod(size for tag, size in threads.items() if tag.startswith("threadIdx")),
        shared_bytes=shared[SHARED],
        asked_bytes=shared[ASKED],
        grid=tuple(threads.get(f"blockIdx.{axis}", 1) for axis in "xyz"),
    )


def check_limits(module: tvm.IRModule, spec: TargetSpec) -> None:
    """Check every scheduled kernel.

    A plain function and no pass, because an error that crosses TVM loses its class.

    Raises
    ------
    LoweringError
        Naming the first kernel over a limit, the limit, and what the kernel asks.
    """
    if not spec.is_gpu:
        return
    for var, func in module.functions_items():
        if isinstance(func, tirx.PrimFunc):
            _check(kernel_use(var.name_hint, func), spec)


def _check(use: KernelUse, spec: TargetSpec) -> None:
    limits = (
        ("threads per block", use.threads, spec.max_threads_per_block),
        ("bytes of shared memory", use.shared_bytes, spec.max_shared_memory_bytes),
        ("bytes of shared memory at a launch", use.asked_bytes, spec.asked_shared_memory_bytes),
        ("storage buffers", use.buffers, spec.max_storage_buffers),
        ("bytes in one binding", use.largest_binding_bytes, spec.max_binding_bytes),
        ("blocks along x", use.grid[0], spec.max_grid_x or spec.max_grid_dim),
        ("blocks along y or z", max(use.grid[1:]), spec.max_grid_dim),
    )
    for what, asked, limit in limits:
        if limit is not None and asked > limit:
            raise LoweringError(
                f"kernel `{use.name}` needs {asked} {what}; target `{spec.name}` with limits "
                f"`{spec.limits}` allows {limit}",
                hint="choose another --limits or a smaller --quant",
            )
