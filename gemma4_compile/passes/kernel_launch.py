"""Launch of a kernel on a GPU: entry point, bindings, scalars and grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import sym, tirx

from gemma4_compile.errors import LoweringError
from gemma4_compile.passes.lowering import device_pipeline
from gemma4_compile.targets.spec import TargetSpec

_BLOCK_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
_THREAD_AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_POINTER = "_ptr"  # what TVM appends to a buffer's name for its address


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel as the device sees it.

    Attributes
    ----------
    entry_point : its name in the shader
    bindings : names of the kernel's buffer parameters, in the order of their bindings
    scalars : names of its scalar parameters, in the order of the uniform's words
    grid : extents along x, y and z; of constants and of `variables`
    threads : of a block, along x, y and z
    variables : scalars by name, as they occur in `grid`
    text : of the function that code is generated from
    """

    entry_point: str
    bindings: tuple[str, ...]
    scalars: tuple[str, ...]
    grid: tuple[tvm.ir.Expr, tvm.ir.Expr, tvm.ir.Expr]
    threads: tuple[tvm.ir.Expr, tvm.ir.Expr, tvm.ir.Expr]
    variables: Mapping[str, tirx.Var]
    text: str

    def blocks(self, values: Mapping[str, int]) -> tuple[int, int, int]:
        """The grid where the scalars have these values."""
        analyzer = sym.Analyzer()
        for name, var in self.variables.items():
            analyzer.bind(var, tirx.IntImm(str(var.ty.dtype), values[name]))
        x, y, z = (int(analyzer.simplify(extent)) for extent in self.grid)
        return x, y, z


def kernel_launches(
    module: tvm.IRModule, names: Iterable[str], spec: TargetSpec
) -> dict[str, tuple[KernelLaunch, ...]]:
    """Read launches from the functions that code is generated from.

    A function has several where the host chooses one by the number of rows, and none where it is
    not scheduled for a GPU.

    Parameters
    ----------
    module : holds the scheduled PrimFuncs
    names : the functions to read
    """
    chosen = {name: module[name].with_attr("global_symbol", name) for name in names}
    lowering, _, _ = device_pipeline(spec.name)
    target = spec.tvm_target()
    with target:
        bound = tirx.transform.BindTarget(target)(tvm.IRModule(chosen))
        if spec.is_static:  # as in the library, so that its code is made of what is lowered here
            bound = bound.with_attr("system_lib_prefix", "")
        lowered = lowering(bound)
    launches: dict[str, list[KernelLaunch]] = {name: [] for name in chosen}
    for var, func in lowered.functions_items():
        if "tirx.kernel_launch_params" in func.attrs:
            owner = max(
                (name for name in chosen if var.name_hint.startswith(f"{name}_kernel")), key=len
            )
            launches[owner].append(_launch(func))
    return {name: tuple(found) for name, found in launches.items()}


def single_launches(
    module: tvm.IRModule, names: Iterable[str], spec: TargetSpec
) -> dict[str, KernelLaunch]:
    """Read launches of functions of one kernel each.

    Raises
    ------
    LoweringError
        If a function launches several kernels or none.
    """
    launches = kernel_launches(module, names, spec)
    for name, found in launches.items():
        if len(found) != 1:
            raise LoweringError(
                f"kernel `{name}` is {len(found)} launches; one was expected",
                hint="its schedule was found by TVM and not by this project",
            )
    return {name: found[0] for name, found in launches.items()}


def _launch(func: tirx.PrimFunc) -> KernelLaunch:
    extents: dict[str, tvm.ir.Expr] = {}
    named: dict[tirx.Var, tvm.ir.Expr] = {}

    def bind(node: tirx.Bind) -> None:
        named[node.var] = node.value

    def written_out(value: tvm.ir.Expr) -> tvm.ir.Expr:
        def of(var: tirx.Var) -> tvm.ir.Expr:
            return written_out(named[var]) if var in named else var

        return tvm_ffi.structural_map(value, [(tirx.Var, of)])

    def visit(node: tirx.AttrStmt) -> None:
        if node.attr_key == "thread_extent":
            extents.setdefault(str(node.node.thread_tag), node.value)

    tvm_ffi.structural_walk(func.body, [(tirx.AttrStmt, visit), (tirx.Bind, bind)], order="post")
    buffers = [param for param in func.params if isinstance(param.ty, tvm.ir.PointerType)]
    scalars = [param for param in func.params if not isinstance(param.ty, tvm.ir.PointerType)]
    one = tirx.IntImm("int64", 1)
    x, y, z = (written_out(extents.get(axis, one)) for axis in _BLOCK_AXES)
    of_x, of_y, of_z = (extents.get(axis, one) for axis in _THREAD_AXES)
    return KernelLaunch(
        entry_point=str(func.attrs["global_symbol"]),
        bindings=tuple(param.name.removesuffix(_POINTER) for param in buffers),
        scalars=tuple(param.name for param in scalars),
        grid=(x, y, z),
        threads=(of_x, of_y, of_z),
        variables={param.name: param for param in scalars},
        text=func.script(),
    )
