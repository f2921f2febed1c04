"""Other spellings of names: which are read, and that the checks stay strict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gemma4_compile.checkpoint.safetensors_file import (
    TensorInfo,
    computed,
    read_header,
    read_rows,
)
from gemma4_compile.checkpoint.same_weights import holds_same
from gemma4_compile.checkpoint.spellings import (
    TEXT_FRONTS,
    WRAPPERS,
    usual_name,
    usual_tensors,
)
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.embedding.component import EMBEDDING
from gemma4_compile.model_spec.gemma3n.component import GEMMA3N
from gemma4_compile.model_spec.text.component import TEXT as TEXT_COMPONENT
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import gemma3n
from tests.models import E2B_LIKE

TEXT = "model.language_model."
EXPERTS = f"{TEXT}layers.0.experts"
Values = Mapping[str, npt.NDArray[np.float32]]


def numbered(*shape: int, first: int = 0) -> npt.NDArray[np.float32]:
    return np.arange(first, first + np.prod(shape), dtype=np.float32).reshape(shape)


def usual(folder: Path, values: Values, front: str = TEXT) -> dict[str, npt.NDArray[np.float32]]:
    write_safetensors(folder / "model.safetensors", values, "float32")
    found = usual_tensors(read_header(folder / "model.safetensors"), front)
    return {
        name: read_rows(tensor, 0, tensor.row_count).reshape(tensor.shape)
        for name, tensor in found.items()
    }


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_are_left_out_wherever_they_stand(wrapper: str) -> None:
    usual = f"{TEXT}layers.0.mlp.up_proj.weight"
    for index in range(usual.count(".") + 1):
        segments = usual.split(".")
        segments.insert(index, wrapper)
        assert usual_name(".".join(segments), TEXT) == usual


@pytest.mark.parametrize("component", [TEXT_COMPONENT, GEMMA3N, EMBEDDING])
def test_a_decoder_s_and_an_encoder_s_tensors_have_every_front(component: Component) -> None:
    values = {TEXT_COMPONENT: E2B_LIKE, GEMMA3N: gemma3n.E2B_LIKE}
    config = Gemma4Config.from_dict(values.get(component, {"model_type": "embedding_gemma2_text"}))
    parameters = component.parameters(config)
    assert parameters
    for name in (source.name for one in parameters for source in one.sources):
        for front in TEXT_FRONTS:
            assert usual_name(f"{front}{name}", TEXT) == f"{TEXT}{name}"


@pytest.mark.parametrize(
    "name",
    [
        "other.layers.0.mlp.up_proj.weight",
        "model.model.model.model.norm.weight",
        "language_model.language_model.norm.weight",
        "language_model.vision_tower.std_bias",
        "model.other_tower.weight",
        "base_model.norm.weight",
        "layers",
        "",
        "model.",
    ],
)
def test_what_is_no_spelling_stays(name: str) -> None:
    assert usual_name(name, TEXT) == name


def test_a_head_is_beside_the_model() -> None:
    for name in ("lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight"):
        assert usual_name(name, TEXT) == "lm_head.weight"


def test_experts_one_by_one_are_stacked_in_their_order(tmp_path: Path) -> None:
    gates = [numbered(2, 3, first=100 * i) for i in range(12)]
    ups = [numbered(2, 3, first=5000 + 100 * i) for i in range(12)]
    values = {}
    for index in (*range(11, -1, -1),):  # written from the last to the first: 10 is after 9
        values[f"{EXPERTS}.{index}.gate_proj.weight"] = gates[index]
        values[f"{EXPERTS}.{index}.up_proj.weight"] = ups[index]
        values[f"{EXPERTS}.{index}.down_proj.weight"] = gates[index].T.copy()
    found = usual(tmp_path, values)
    pairs = [np.concatenate(pair) for pair in zip(gates, ups, strict=True)]
    assert set(found) == {f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"}
    assert np.array_equal(found[f"{EXPERTS}.gate_up_proj"], np.stack(pairs))
    assert np.array_equal(found[f"{EXPERTS}.down_proj"], np.stack([gate.T for gate in gates]))


def test_rows_across_experts_are_those_of_the_stack(tmp_path: Path) -> None:
    gate, up = numbered(3, 4, 5), numbered(3, 4, 5, first=1000)
    names = [f"{EXPERTS}.switch_glu.{half}_proj.weight" for half in ("gate", "up")]
    write_safetensors(tmp_path / "a", dict(zip(names, (gate, up), strict=True)), "float32")
    (tensor,) = usual_tensors(read_header(tmp_path / "a"), TEXT).values()
    whole = np.concatenate([gate, up], axis=1).reshape(-1, 5)
    for begin in range(len(whole)):
        for end in range(begin, len(whole) + 1):
            assert np.array_equal(read_rows(tensor, begin, end), whole[begin:end])


@dataclass(frozen=True)
class Negated:
    stored: TensorInfo

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        return (self.stored,)

    def read_rows(self, begin: int, end: int) -> npt.NDArray[np.float32]:
        return -read_rows(self.stored, begin, end)


@pytest.mark.parametrize("is_stack", [True, False])
def test_experts_that_are_computed_are_stacked_as_stored_ones(
    is_stack: bool, tmp_path: Path
) -> None:
    gate, up = numbered(2, 3, 4), numbered(2, 3, 4, first=1000)
    values = {}
    for half, stack in (("gate", gate), ("up", up)):
        if is_stack:
            values[f"{EXPERTS}.switch_glu.{half}_proj.weight"] = stack
        else:
            values |= {f"{EXPERTS}.{i}.{half}_proj.weight": one for i, one in enumerate(stack)}
    write_safetensors(tmp_path / "a", values, "float32")
    stored = read_header(tmp_path / "a")
    given = {name: computed(name, one.shape, Negated(one)) for name, one in stored.items()}
    (tensor,) = usual_tensors(given, TEXT).values()
    assert set(tensor.stored) == set(stored.values())
    expected = -np.concatenate([gate, up], axis=1).reshape(-1, 4)
    assert np.array_equal(read_rows(tensor, 0, 12), expected)
    assert np.array_equal(read_rows(tensor, 4, 9), expected[4:9])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("0.gate_proj.weight", "0.up_proj.weight", "2.gate_proj.weight"), r"1\.gate_proj"),
        (("0.gate_proj.weight",), "1 `gate_proj` and 0 `up_proj`"),
        (("0.down_proj.weight", "0.down_proj"), "twice"),
        (("1.down_proj.weight",), r"0\.down_proj` is missing"),
        (("0.gate_proj.weight", "0.up_proj.weight", "gate_up_proj"), "beside `gate_up_proj`"),
        (("switch_glu.down_proj.weight",), r"expected \(experts, rows, cols\)"),
    ],
)
def test_experts_that_are_not_complete_are_named(
    names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    values = {f"{EXPERTS}.{name}": numbered(2, 3) for name in names}
    with pytest.raises(CheckpointError, match=message):
        usual(tmp_path, values)


def test_experts_of_other_shapes_are_named(tmp_path: Path) -> None:
    names = [f"{EXPERTS}.{i}.down_proj.weight" for i in range(2)]
    with pytest.raises(CheckpointError, match=r"`.*\.1\.down_proj\.weight` has shape \(3, 2\)"):
        usual(tmp_path, {names[0]: numbered(2, 3), names[1]: numbered(3, 2)})


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
        "model.layers.0.self_attn.q_proj.lora_B.weight",
        "model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.lm_head.modules_to_save.default.weight",
    ],
)
def test_an_adapter_that_is_not_merged_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="adapter that is not merged") as caught:
        usual(tmp_path, {name: numbered(2, 2), f"{TEXT}norm.weight": numbered(2)})
    assert "merge_and_unload" in str(caught.value.hint)


def test_copies_are_compared_to_the_last_byte(tmp_path: Path) -> None:
    values = numbered(7, 9)
    other = values.copy()
    other[-1, -1] += 1
    write_safetensors(tmp_path / "a", {"a": values, "b": values, "c": other}, "float32")
    write_safetensors(tmp_path / "b", {"a": values, "d": values.reshape(9, 7)}, "float32")
    one, two = read_header(tmp_path / "a"), read_header(tmp_path / "b")
    assert holds_same(one["a"], one["b"])
    assert holds_same(one["b"], two["a"])
    assert not holds_same(one["a"], one["c"])
    assert not holds_same(one["a"], two["d"])
