"""Checkpoints for phones next to transformers in float32, which rounds them as it runs.

A forward that rounds is no continuous function: sums in another order put a value on the other side
of a tie once in a while, and one step of one channel is as large as what this test looks for. So
the prompts are those whose values are all apart from ties in transformers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.integrations.gemma_quant import QuantizedLinear

from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.runtime import Engine
from gemma4_compile.verification.transformer import run_transformers, text_config
from tests import hf, hf_phone, models, packages, phone_checkpoints, tolerances
from tests.marks import slow_unless

pytestmark = pytest.mark.parity

LENGTH, CHUNK, DECODED_FROM = 14, 5, 9
TRIED = 60
APART = 1e-5
"""Of a step: sums of at most 256 terms, up to 128 steps large, in float32: about 3e-6."""


@contextmanager
def distances(model: Any) -> Iterator[list[float]]:
    """The least distance of a value from a tie, in steps, of each rounding that runs."""
    found: list[float] = []

    def note(values: torch.Tensor, step: torch.Tensor) -> None:
        if step != 0:
            inside = values[(values / step).abs() < 130] / step
            found.append(float((inside - inside.floor() - 0.5).abs().min()))

    def hook(module: Any, inputs: Any, result: Any) -> None:
        x = inputs[0]
        note(x, module.input_activation_scale)
        rounded = hf_phone.rounded(x, module.input_activation_scale)
        note(rounded @ module._dequantize_weights().T, module.output_activation_scale)

    hooks = [
        module.register_forward_hook(hook)
        for module in model.modules()
        if isinstance(module, QuantizedLinear)
    ]
    try:
        yield found
    finally:
        for one in hooks:
            one.remove()


def decided(model: Any, count: int) -> list[list[int]]:
    """Prompts whose values are apart from ties."""
    prompts: list[list[int]] = []
    for seed in range(TRIED):
        ids = [int(i) for i in models.prompt(LENGTH, seed=seed)]
        with distances(model) as found:
            hf.logits(model, ids)
        if min(found) > APART:
            prompts.append(ids)
        if len(prompts) == count:
            break
    assert len(prompts) == count, f"{len(prompts)} of {TRIED} prompts are decided"
    return prompts


@dataclass(frozen=True)
class Case:
    """A checkpoint, transformers on it, and prompts that both must agree on."""

    path: Path
    model: Any
    prompts: Sequence[Sequence[int]]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("phone")
    phone_checkpoints.write(path)
    model = hf_phone.load(path)
    return Case(path, model, decided(model, 3))


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in compressed-tensors."""
    path = tmp_path_factory.mktemp("compressed")
    phone_checkpoints.write_compressed(path)
    return path


def test_both_forms_are_one_model_in_transformers(case: Case, compressed: Path) -> None:
    model = hf_phone.opened(compressed)
    for ids in case.prompts:
        assert np.array_equal(hf.logits(model, ids), hf.logits(case.model, ids))


@pytest.mark.slow
def test_groups_that_round_one_end_are_those_of_transformers(
    case: Case, compressed: Path, tmp_path: Path
) -> None:
    source = tmp_path / "checkpoint"
    shutil.copytree(compressed, source)
    config = json.loads((source / "config.json").read_text())
    groups = config["quantization_config"]["config_groups"]
    groups["group_4"]["input_activations"] = groups["group_2"]["output_activations"] = None
    (source / "config.json").write_text(json.dumps(config))
    model = hf_phone.load(case.path)
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            unrounded = {4: module.input_activation_scale, 2: module.output_activation_scale}
            unrounded.get(module.num_bits, torch.zeros(1)).data.zero_()
    (ids,) = decided(model, 1)
    truth = hf.logits(model, ids)
    assert np.array_equal(hf.logits(hf_phone.opened(source), ids), truth)
    assert np.abs(truth - hf.logits(case.model, ids)).max() > 1000 * tolerances.LOGITS_F32
    package = packages.compile_package(source, "f32", tmp_path / "package", optimised=False)
    found = Engine.open(package).prefill(list(ids))
    np.testing.assert_allclose(found, truth[-1], rtol=0, atol=tolerances.LOGITS_F32)


@pytest.mark.parametrize(
    ("form", "recipe"),
    slow_unless(lambda form, _: form == "gemma", [("gemma", "mobile"), ("compressed", "mobile")]),
)
def test_chunks_and_tokens_are_those_of_transformers(
    form: str, recipe: str, case: Case, compressed: Path, tmp_path: Path
) -> None:
    source = compressed if form == "compressed" else case.path
    package = packages.compile_package(source, recipe, tmp_path / "package", optimised=False)
    engine = Engine.open(package)
    for ids in case.prompts:
        truth = hf.logits(case.model, ids)
        engine.clear()
        found = {CHUNK - 1: engine.prefill(list(ids[:CHUNK]))}
        found[DECODED_FROM - 1] = engine.prefill(list(ids[CHUNK:DECODED_FROM]))
        found |= {i: engine.decode(ids[i]) for i in range(DECODED_FROM, LENGTH)}
        for position, logits in found.items():
            np.testing.assert_allclose(
                logits, truth[position], rtol=0, atol=tolerances.LOGITS_F32, err_msg=f"{position}"
            )


@pytest.mark.slow
def test_products_of_integers_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    """The operators of targets with products of int8: their definitions, on the host."""
    directory = tmp_path / "package"
    package = packages.compile_package(
        case.path, "mobile", directory, activations="int8", optimised=False
    )
    engine, ids = Engine.open(package), case.prompts[0]
    truth = hf.logits(case.model, ids)
    found = {CHUNK - 1: engine.prefill(list(ids[:CHUNK]))}
    found |= {i: engine.decode(ids[i]) for i in range(CHUNK, LENGTH)}
    for position, logits in found.items():
        np.testing.assert_allclose(logits, truth[position], rtol=0, atol=tolerances.LOGITS_F32)


def test_without_its_rounding_it_is_another_model(case: Case, tmp_path: Path) -> None:
    """What a runtime that leaves it out gives, next to the tolerance."""
    ids = case.prompts[0]
    truth = hf.logits(case.model, ids)
    other = hf.logits(hf_phone.without_rounding(hf_phone.load(case.path)), ids)
    assert np.abs(truth - other).max() > 1000 * tolerances.LOGITS_F32


def test_the_reference_of_a_verification_rounds_as_transformers_does(case: Case) -> None:
    checkpoint = Checkpoint.open(case.path)
    config = Gemma4Config.from_dict(checkpoint.config)
    matched = match(checkpoint.tensors, config)
    shapes = {name: tensor.shape for name, tensor in matched.items()}
    ids = list(case.prompts[0])
    run = run_transformers(
        *(text_config(checkpoint.config), config.dtype, row_reader(matched), shapes),
        *(ids, list(range(LENGTH))),
    )
    truth = hf.logits(case.model, ids)
    np.testing.assert_allclose(run.logits, truth, rtol=0, atol=tolerances.LOGITS_F32)
