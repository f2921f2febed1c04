"""Checks of the tensors that come into a library from outside."""

from functools import cache

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import dlight
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.passes.check_tensors import CheckTensors
from gemma4_compile.passes.lowering import device_pipeline, host_pipeline
from gemma4_compile.targets import target_spec

FLOAT16, FLOAT32 = 2 * 256 + 16, 2 * 256 + 32
WEBGPU = 15


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
        def decode(
            x: R.Tensor(("n",), "float32"),
            unread: R.Tensor((4,), "float32"),
            kv: R.Any,
            params: R.Tuple(
                R.Tensor((4,), "float32"), R.Tensor((5,), "float32"), R.Tensor((6, 2), "float16")
            ),
            y: R.Tensor((4,), "float32"),
        ) -> R.Tensor((6, 2), "float16"):
            R.func_attr({"relax.force_pure": True})
            cls = Before
            last: R.Tensor((6, 2), "float16") = params[2]
            first: R.Tensor((4,), "float32") = params[0]
            cls.twice(x, y)
            cls.twice(first, y)
            key = R.call_packed("gemma4_kv_key", kv, ty_args=[R.Tensor(dtype="float32", ndim=2)])
            flat = R.call_packed("vm.builtin.reshape", key, ty_args=[R.Tensor((4,), "float32")])
            cls.twice(flat, y)
            return last

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
        def decode(
            x: R.Tensor(("n",), "float32"),
            unread: R.Tensor((4,), "float32"),
            kv: R.Any,
            params: R.Tuple(
                R.Tensor((4,), "float32"), R.Tensor((5,), "float32"), R.Tensor((6, 2), "float16")
            ),
            y: R.Tensor((4,), "float32"),
        ) -> R.Tensor((6, 2), "float16"):
            R.func_attr({"relax.force_pure": True})
            cls = Expected
            R.call_packed(
                *("gemma4_check_tensors", R.str("decode: x"), WEBGPU, x),
                R.shape([-1, FLOAT32, 1, -1]),
                ty_args=[R.Tuple],
            )
            R.call_packed(
                *("gemma4_check_tensors", R.str("decode: params"), WEBGPU, params),
                R.shape([0, FLOAT32, 1, 4, 2, FLOAT16, 2, 6, 2]),
                ty_args=[R.Tuple],
            )
            R.call_packed(
                *("gemma4_check_tensors", R.str("decode: y"), WEBGPU, y),
                R.shape([-1, FLOAT32, 1, 4]),
                ty_args=[R.Tuple],
            )
            last: R.Tensor((6, 2), "float16") = params[2]
            first: R.Tensor((4,), "float32") = params[0]
            cls.twice(x, y)
            cls.twice(first, y)
            key = R.call_packed("gemma4_kv_key", kv, ty_args=[R.Tensor(dtype="float32", ndim=2)])
            R.call_packed(
                *("gemma4_check_tensors", R.str("decode: gemma4_kv_key"), WEBGPU, key),
                R.shape([-1, FLOAT32, 2, -1, -1]),
                ty_args=[R.Tuple],
            )
            flat = R.call_packed("vm.builtin.reshape", key, ty_args=[R.Tensor((4,), "float32")])
            cls.twice(flat, y)
            return last

    return Expected


def test_what_comes_from_outside_and_is_read_is_checked() -> None:
    after = tvm.transform.Sequential([CheckTensors(int(DeviceType.WEBGPU))])(before_module())
    tvm.ir.assert_structural_equal(after, expected_module(), map_free_vars=True)


def _asserts(lowered: tvm.IRModule) -> int:
    count = 0

    def visit(_: tirx.AssertStmt) -> None:
        nonlocal count
        count += 1

    for _, func in lowered.functions_items():
        tvm_ffi.structural_walk(func.body, [(tirx.AssertStmt, visit)], order="post")
    return count


def test_what_launches_a_kernel_checks_nothing() -> None:
    module = tvm.transform.Sequential([])(before_module())
    kernels = module.functions_items()
    for name, pipeline in (("webgpu", device_pipeline), ("cpu", host_pipeline)):
        target = target_spec(name).tvm_target()
        (twice,) = (func for _, func in kernels if isinstance(func, tirx.PrimFunc))
        module = tvm.IRModule({"main": twice.with_attr("global_symbol", "main")})
        with target:
            if name == "webgpu":
                module = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)
            host = target.host or target
            bound = tirx.transform.BindTarget(target.with_host(host))(module)
            tvms, _, _ = default_s_tir_pipeline()
            ours, _, _ = pipeline()
            assert _asserts(tvms(bound)) > 0
            assert _asserts(ours(bound)) == 0
