"""Weights under other names, next to transformers: what it takes is taken, with the same values."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.spellings import (
    HEAD_FRONTS,
    MERGED_FRONT,
    PART_FRONTS,
    TEXT_FRONTS,
    WRAPPERS,
)
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.component import DRAFTER
from tests import drafters, media_checkpoints, models

pytestmark = pytest.mark.parity

TEXT = "model.language_model."
Weights = Mapping[str, npt.NDArray[Any]]
Change = Callable[[Weights], dict[str, npt.NDArray[Any]]]


def renamed(rename: Callable[[str], str]) -> Change:
    return lambda weights: {rename(name): value for name, value in weights.items()}


def text_front(front: str) -> Change:
    return renamed(lambda n: f"{front}{n.removeprefix(TEXT)}" if n.startswith(TEXT) else n)


def mlx_names(name: str) -> str:
    return name.replace(TEXT, "language_model.model.").removeprefix("model.")


def mlx(weights: Weights) -> dict[str, npt.NDArray[Any]]:
    """As `mlx_vlm.convert` writes it: other fronts, three stacks of experts, channels last."""
    made = {}
    for name, value in weights.items():
        key = mlx_names(name)
        if key.endswith(".experts.gate_up_proj"):
            for half, part in zip(("gate", "up"), np.split(value, 2, axis=1), strict=True):
                made[key.replace("gate_up_proj", f"switch_glu.{half}_proj.weight")] = part.copy()
        elif key.endswith(".experts.down_proj"):
            made[key.replace("down_proj", "switch_glu.down_proj.weight")] = value
        elif re.search(r"(conv|conv1d)\.weight$", key):
            made[key] = np.ascontiguousarray(np.moveaxis(value, 1, -1))
        else:
            made[key] = value
    return made


def experts_one_by_one(weights: Weights) -> dict[str, npt.NDArray[Any]]:
    made = {}
    for name, value in weights.items():
        stem, _, projection = name.rpartition(".")
        if not stem.endswith(".experts"):
            made[name] = value
            continue
        for index, expert in enumerate(value):
            parts = {projection: expert}
            if projection == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), np.split(expert, 2), strict=True))
            made |= {f"{stem}.{index}.{key}.weight": part.copy() for key, part in parts.items()}
    return made


def in_memory(name: str) -> str:
    """The names of transformers' modules; of `gemma4_unified` they are not those of the files."""
    name = name.replace("embed_vision.", "embed_vision.multimodal_embedder.")
    return name.replace("vision_embedder.", "embed_vision.")


# The kind of model, the change, and whether transformers 5.24 takes it.
SPELLINGS: dict[str, tuple[str, Change, bool]] = {
    **{
        f"text front {front!r}": ("e2b", text_front(front), front in taken)
        for taken in [
            {TEXT, "language_model.", "model.model.language_model."}
            | {"model.language_model.model.", "language_model.model.model."}
        ]
        for front in TEXT_FRONTS
        if "language_model" in front
    },
    **{
        f"front of a part {front!r}": (
            "e2b",
            renamed(
                lambda n, front=front: (
                    n  # type: ignore[misc]
                    if n.startswith(TEXT)
                    else front + n.removeprefix("model.")
                )
            ),
            True,
        )
        for front in PART_FRONTS
    },
    "the inner model": ("unified", renamed(lambda n: n.removeprefix("model.")), True),
    "names in memory": ("unified", renamed(in_memory), True),
    "names in memory, the inner model": (
        "unified",
        renamed(lambda n: in_memory(n).removeprefix("model.")),
        True,
    ),
    **{
        f"{wrapper} in front": ("e2b", renamed(lambda n, w=wrapper: f"{w}.{n}"), False)  # type: ignore[misc]
        for wrapper in WRAPPERS
    },
    **{
        f"{wrapper} of each layer": (
            "unified",
            renamed(lambda n, w=wrapper: re.sub(r"(layers\.\d+\.)", rf"\1{w}.", n)),  # type: ignore[misc]
            False,
        )
        for wrapper in WRAPPERS
    },
    "PEFT, merged": ("moe", renamed(lambda n: MERGED_FRONT + n), False),
    "PEFT around torch.compile": ("moe", renamed(lambda n: f"_orig_mod.{MERGED_FRONT}{n}"), False),
    "experts one by one": ("moe", experts_one_by_one, False),
    "experts one by one, wrapped": (
        "moe",
        lambda weights: renamed(lambda n: f"module.{n}")(experts_one_by_one(weights)),
        False,
    ),
    "MLX, experts": ("moe", mlx, False),
    "MLX, sounds": ("e2b", mlx, False),
    "MLX, no towers": ("unified", mlx, False),
}


def transformers_takes(folder: Path) -> bool:
    """Whether every tensor of the model comes from the file, and every one of the file is used."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    except RuntimeError:  # of sizes
        return False
    told = loaded[1]
    left = [*told["missing_keys"], *told["unexpected_keys"]]
    return not [name for name in left if "layers" in name or "embed" in name or "proj" in name]


def rewrite(folder: Path, change: Change) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


def sources_of(folder: Path) -> dict[str, npt.NDArray[np.float32]]:
    opened = Checkpoint.open(folder)
    config = Gemma4Config.from_dict(opened.config, modalities=None)
    found = match(opened.tensors, config, COMPONENTS)
    read = row_reader(found)
    return {name: read(name, 0, tensor.row_count) for name, tensor in found.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("kinds")

    def write(kind: str) -> Path:
        if not (folder / kind).exists():
            media_checkpoints.write_checkpoint(folder / kind, media_checkpoints.KINDS[kind])
        return folder / kind

    return write


@pytest.mark.parametrize("name", SPELLINGS)
def test_another_spelling_has_the_same_values(
    name: str, written: Callable[[str], Path], tmp_path: Path
) -> None:
    kind, change, is_transformers = SPELLINGS[name]
    meant = sources_of(written(kind))
    folder = shutil.copytree(written(kind), tmp_path / "checkpoint")
    rewrite(folder, change)
    found = sources_of(folder)
    assert set(found) == set(meant)
    for key, values in meant.items():
        assert np.array_equal(found[key], values), key
    assert transformers_takes(folder) is is_transformers


@pytest.mark.parametrize(("front", "taken"), [("model.", True), ("", True), ("model.model.", True)])
def test_a_text_decoder_alone(front: str, taken: bool, tmp_path: Path) -> None:
    models.write_checkpoint(tmp_path, models.E2B_LIKE, form="transformers")
    meant = sources_of(tmp_path)
    rewrite(tmp_path, renamed(lambda n: front + n.removeprefix("model.")))
    found = sources_of(tmp_path)
    assert set(found) == set(meant)
    assert all(np.array_equal(found[key], values) for key, values in meant.items())
    assert transformers_takes(tmp_path) is taken


@pytest.mark.parametrize("front", [*HEAD_FRONTS[:2], "_orig_mod.", "module.model."])
@pytest.mark.parametrize("inner", ["model.", ""])
def test_a_drafter(front: str, inner: str, tmp_path: Path) -> None:
    drafter = drafters.write_drafter(tmp_path, "e2b")
    target = Gemma4Config.from_dict(models.config_file(models.E2B_LIKE, "hub", "float32"))
    config = replace(target, drafter=drafter.config)
    meant = match(Checkpoint.open(tmp_path).tensors, config, (DRAFTER,))
    read = row_reader(meant)
    before = {name: read(name, 0, tensor.row_count) for name, tensor in meant.items()}

    def rename(name: str) -> str:
        if name.startswith("model."):
            return f"{front.removesuffix('model.')}{inner}{name.removeprefix('model.')}"
        return front + name

    rewrite(tmp_path, renamed(rename))
    found = match(Checkpoint.open(tmp_path).tensors, config, (DRAFTER,))
    read = row_reader(found)
    assert set(found) == set(before)
    for name, values in before.items():
        assert np.array_equal(read(name, 0, found[name].row_count), values), name
    is_wrapped = "_orig_mod" in front or "module" in front
    assert transformers_takes(tmp_path) is not is_wrapped
