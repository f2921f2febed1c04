import dataclasses

import pytest

from gemma4_compile.device_kinds import DeviceType
from gemma4_compile.errors import UsageError
from gemma4_compile.targets import TARGETS, target_spec


def test_default_webgpu_limits_are_what_the_client_requests() -> None:
    spec = target_spec("webgpu")
    assert (spec.max_threads_per_block, spec.max_shared_memory_bytes) == (256, 32_768)
    assert (spec.max_storage_buffers, spec.max_binding_bytes) == (10, 134_217_728)
    assert spec.max_grid_dim == 65_535
    assert spec.device_type is DeviceType.WEBGPU
    assert spec.device_type.value == 15


def test_compat_limits_differ_in_threads_and_shared_memory_only() -> None:
    default, compat = target_spec("webgpu"), target_spec("webgpu", "compat")
    changed = {
        field.name
        for field in dataclasses.fields(default)
        if getattr(default, field.name) != getattr(compat, field.name)
    }
    assert changed == {"limits", "max_threads_per_block", "max_shared_memory_bytes"}
    assert (compat.max_threads_per_block, compat.max_shared_memory_bytes) == (128, 16_384)


@pytest.mark.parametrize("limits", ["default", "compat"])
def test_tvm_target_of_webgpu_carries_the_limits(limits: str) -> None:
    spec = target_spec("webgpu", limits)
    target = spec.tvm_target()
    assert target.kind.name == "webgpu"
    assert target.attrs["max_num_threads"] == spec.max_threads_per_block
    assert target.attrs["max_shared_memory_per_block"] == spec.max_shared_memory_bytes
    assert not target.attrs["supports_subgroups"]
    assert target.host.attrs["mtriple"] == "wasm32-unknown-unknown-wasm"


def test_subgroups_reach_the_code_generator() -> None:
    spec = target_spec("webgpu", "subgroups")
    assert spec.tvm_target().attrs["supports_subgroups"]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_smaller_subgroups_are_all_that_such_limits_change(size: int) -> None:
    spec, larger = target_spec("webgpu", f"subgroups-{size}"), target_spec("webgpu", "subgroups")
    assert larger.simd_width == 32
    assert dataclasses.replace(larger, limits=spec.limits, simd_width=size) == spec


def test_tvm_target_of_cpu_has_no_host() -> None:
    spec = target_spec("cpu")
    assert not spec.is_gpu
    assert spec.max_binding_bytes is None
    assert spec.tvm_target().kind.name == "llvm"


@pytest.mark.parametrize(
    ("name", "limits", "known"),
    [("toaster", "default", "webgpu"), ("webgpu", "huge", "compat"), ("cpu", "compat", "default")],
)
def test_unknown_names_are_refused_with_the_known_ones(name: str, limits: str, known: str) -> None:
    with pytest.raises(UsageError) as caught:
        target_spec(name, limits)
    assert caught.value.hint is not None
    assert known in caught.value.hint


def test_every_target_has_a_default_of_its_own_name() -> None:
    for name, target in TARGETS.items():
        assert target.limits["default"].name == name
        assert all(limits == spec.limits for limits, spec in target.limits.items())
