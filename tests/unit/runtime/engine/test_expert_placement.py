"""Where experts lie: what a device allows, and which tensors are meant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine import expert_placement
from gemma4_compile.runtime.engine.expert_placement import (
    MARGIN_BYTES,
    ExpertPlacement,
    cache_of,
    place_experts,
)

LAYER = 4 * 3 * 2 + 5


def params(prefix: str = "") -> list[dict[str, Any]]:
    listed = [("embedding.weight", [10, 3], "float16")]
    for layer in range(12):  # so that 10 comes after 9
        listed += [
            (f"layers.{layer}.experts.down_proj.q_weight.part0", [3, 2], "uint32"),
            (f"layers.{layer}.experts.down_proj.q_scale.part0", [5], "int8"),
            (f"layers.{layer}.mlp.down_proj.q_weight", [7], "uint32"),
        ]
    return [{"name": f"{prefix}{name}", "shape": s, "dtype": d} for name, s, d in listed]


def metadata(estimate: object = None, **further: object) -> dict[str, object]:
    resources = {} if estimate is None else {"estimated_device_memory_bytes": estimate}
    return {"params": params(), "artifact": {"resources": resources}, **further}


class Gpu(Device):
    """A GPU with so many bytes free."""

    free: int | None = 0

    def free_bytes(self) -> int | None:
        return self.free


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[Gpu]:
    monkeypatch.setattr(expert_placement, "check_room", lambda nbytes: None)

    class Own(Gpu):
        pass

    return Own


def test_the_first_layers_are_the_hosts(gpu: type[Gpu]) -> None:
    found = place_experts(metadata(), gpu("cuda"), 0.25, drafter=False)
    assert found.on_host == set(range(9))
    assert (found.host_bytes, found.device_bytes) == (9 * LAYER, 3 * LAYER)
    assert list(found.layer_bytes) == list(range(12))
    assert found.is_on_host("layers.8.experts.down_proj.q_scale.part0")
    assert not found.is_on_host("layers.10.experts.down_proj.q_scale.part0")
    assert not found.is_on_host("layers.8.mlp.down_proj.q_weight")
    assert found.describe().startswith("experts of 9 of 12 layers are in the host's memory (0.0 GB")


@pytest.mark.parametrize("loaded", [False, True])
def test_a_drafter_takes_room_if_it_is_loaded(gpu: type[Gpu], loaded: bool) -> None:
    own = [{"name": "drafter.layers.0.experts.x", "shape": [1000], "dtype": "int8"}]
    gpu.free = 9000 + MARGIN_BYTES
    values = metadata(9000, drafter={"params": own})
    found = place_experts(values, gpu("cuda"), None, drafter=loaded)
    assert len(found.on_host) == (12 if loaded else 0)
    assert len(found.layer_bytes) == 12


def test_what_a_shorter_context_does_not_need_is_room_for_experts(gpu: type[Gpu]) -> None:
    gpu.free = 9000 + MARGIN_BYTES - 2 * LAYER
    for unused, layers in ((0, 2), (1, 2), (LAYER, 1), (2 * LAYER, 0), (9000, 0)):
        found = place_experts(metadata(9000), gpu("cuda"), None, drafter=False, unused_bytes=unused)
        assert len(found.on_host) == layers


def test_a_budget_is_held_where_more_is_free(gpu: type[Gpu]) -> None:
    gpu.free = 1 << 40
    for missing, layers in ((0, 0), (1, 1), (LAYER + 1, 2), (10**9, 12)):
        most = 9000 + MARGIN_BYTES - missing
        found = place_experts(metadata(9000), gpu("cuda"), None, drafter=False, most_bytes=most)
        assert len(found.on_host) == layers
        assert found.share == pytest.approx(1 - layers / 12)
    gpu.free = 0
    found = place_experts(metadata(9000), gpu("cuda"), None, drafter=False, most_bytes=1 << 40)
    assert len(found.on_host) == 12


@pytest.mark.parametrize("estimate", [None, "9000", -1])
def test_without_an_estimate_the_weights_count(gpu: type[Gpu], estimate: object) -> None:
    weights = 60 + 12 * (LAYER + 28)
    for missing, layers in ((0, 0), (1, 1), (LAYER, 1), (LAYER + 1, 2), (10**9, 12)):
        gpu.free = weights + MARGIN_BYTES - missing
        found = place_experts(metadata(estimate), gpu("cuda"), None, drafter=False)
        assert len(found.on_host) == layers
    gpu.free = None
    assert not place_experts(metadata(estimate), gpu("cuda"), None, drafter=False).on_host


def test_the_tensors_meant_are_those_of_the_released_mixture() -> None:
    table = model_parameters(Gemma4Config.from_preset("gemma-4-26B-A4B-it"), COMPONENTS)
    everywhere = ExpertPlacement(dict.fromkeys(range(30), 1), frozenset(range(30)))
    for limit in (None, 128 << 20):
        for one in storage_plan(table, RECIPES["q4f16"], limit):
            for tensor in one.tensors:
                is_expert = one.parameter.role is Role.EXPERTS
                assert everywhere.is_on_host(tensor.name) == is_expert


@pytest.mark.parametrize(
    ("device", "share", "said"),
    [
        ("cpu", 1.0, "`cpu` has no memory but the host's"),
        ("cpu", 0.5, "`cpu` has no memory but the host's"),
        ("metal", 0.0, "on `metal` the GPU's memory is the host's"),
        ("metal", 0.99, "on `metal` the GPU's memory is the host's"),
    ],
)
def test_where_memory_is_one_there_is_no_share(device: str, share: float, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        place_experts(metadata(), Device(device), share, drafter=False)
    assert told.value.hint is not None
    assert "leave out --experts" in told.value.hint


def test_a_cache_takes_room_of_experts_where_there_is_not_enough(gpu: type[Gpu]) -> None:
    for missing, cache, layers in ((0, LAYER, 0), (1, LAYER, 2), (1, LAYER - 1, 1), (1, 0, 1)):
        gpu.free = 9000 + MARGIN_BYTES - missing
        found = place_experts(metadata(9000), gpu("cuda"), None, drafter=False, cache_bytes=cache)
        assert len(found.on_host) == layers
    found = place_experts(metadata(9000), gpu("cuda"), 0.5, drafter=False, cache_bytes=LAYER)
    assert len(found.on_host) == 6, "a share is as it is said"
    assert cache_of(metadata(9000), gpu("cuda"), replace(found, cache_bytes=0)) is None


def test_without_a_word_a_cache_has_a_part_of_the_room(
    gpu: type[Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = 12 * LAYER

    def placed(missing: int, share: float | None = None) -> ExpertPlacement:
        gpu.free = 9000 + MARGIN_BYTES - missing
        device = gpu("cuda")
        return place_experts(metadata(9000), device, share, drafter=False, cache_bytes=None)

    assert not placed(2 * LAYER).cache_bytes, "too small to be worth it"
    monkeypatch.setattr(expert_placement, "LEAST_CACHE_BYTES", 1)
    for missing in range(1, experts, 7):
        found = placed(missing)
        room = experts - missing
        assert found.cache_bytes == min(round(0.4 * room), 2 * missing)
        assert found.device_bytes <= room - found.cache_bytes < found.device_bytes + LAYER
    assert not placed(experts + 1).cache_bytes, "there is no room for any"
    assert not placed(0).cache_bytes, "all fit"
    assert not placed(3, 0.5).cache_bytes, "a share is as it is said"
    assert "; the GPU keeps 1.5 GB" in replace(found, cache_bytes=1_500_000_000).describe()
    assert "keeps" not in replace(found, cache_bytes=0).describe()


@pytest.mark.parametrize(
    ("device", "said", "what_to_do"),
    [
        ("cpu", "`cpu` has no memory but the host's", "for `cuda`"),
        ("metal", "on `metal` the GPU's memory is the host's", "--target metal --fit"),
    ],
)
def test_where_memory_is_one_there_is_no_cache(device: str, said: str, what_to_do: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        place_experts(metadata(), Device(device), None, drafter=False, cache_bytes=1)
    assert told.value.hint is not None
    assert "leave out --expert-cache" in told.value.hint
    assert what_to_do in told.value.hint
    with pytest.raises(UsageError, match="this package's model has no experts"):
        place_experts({"params": []}, Device("cuda"), None, drafter=False, cache_bytes=1)


@pytest.mark.parametrize(("device", "share"), [("cpu", 0.0), ("metal", 1.0), ("cpu", None)])
def test_what_is_so_anyway_may_be_said(device: str, share: float | None) -> None:
    found = place_experts(metadata(), Device(device), share, drafter=False)
    assert not found.on_host
