"""The recipe of checkpoints for phones: schemes by their own tensors, and whom it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch_file
from safetensors.torch import save_file as save_torch_file

from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.own_schemes import with_own_schemes
from gemma4_compile.compile.request import CompileRequest, compile_request
from gemma4_compile.errors import QuantizationError, UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.quantization.rows import WHOLE_ROW, RowScheme
from tests import models, phone_checkpoints


def resolved(path: Path, *, weights: bool = True, **fields: object) -> CompileRequest:
    request = CompileRequest(str(path), "cpu", "mobile", Path("out"))
    with open_source(str(path), None, weights=weights) as source:
        table = model_parameters(source.config, ALL_COMPONENTS)
        return with_own_schemes(replace(request, **fields), source, table)  # type: ignore[arg-type]


def schemes_of(path: Path) -> dict[str, str]:
    """The schemes of a checkpoint's matrices by their names."""
    request = resolved(path)
    recipe = with_overrides(request.quant, request.overrides)
    with open_source(str(path), None, weights=False) as source:
        table = model_parameters(source.config, ALL_COMPONENTS)
    return {one.name: recipe.scheme(one).name for one in table if len(one.shape) == 2}


@pytest.fixture(scope="module")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phone")
    phone_checkpoints.write(path)
    return path


def test_each_matrix_has_the_scheme_that_it_was_stored_with(phone: Path) -> None:
    request = resolved(phone, overrides=(("layers.0.self_attn.o_proj", "q0f32"),))
    recipe = with_overrides(request.quant, request.overrides)
    with open_source(str(phone), None, weights=False) as source:
        table = model_parameters(source.config, ALL_COMPONENTS)
    found = {one.name: recipe.scheme(one).name for one in table if len(one.shape) == 2}
    assert found["embed_tokens"] == "q2f32_row"
    assert found["embed_tokens_per_layer"] == "q4f32_256"
    assert found["per_layer_model_projection"] == "q0f32"
    assert found["layers.0.mlp.gate_up_proj"] == "q4f32_row"
    assert found["layers.6.mlp.gate_up_proj"] == "q2f32_row"
    assert found["layers.3.self_attn.qkv_proj"] == "q4f32_row"
    assert found["layers.3.per_layer_input_gate"] == "q8f32_row"
    assert found["layers.0.self_attn.o_proj"] == "q0f32", "what the user says counts last"
    assert "lm_head" not in found, "it is the token embedding, stored twice"
    # What the recipe has by itself needs no entry.
    assert "layers.3.self_attn.qkv_proj" not in dict(request.overrides)


def test_bfloat16_stays_what_it_is(phone: Path, tmp_path: Path) -> None:
    for file in phone.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    name = "model.per_layer_model_projection.weight"
    tensors = load_torch_file(phone / "model.safetensors")
    whole = tensors[name]
    tensors[name] = whole.to(torch.bfloat16)
    assert (tensors[name].float() == whole).all(), "the tests' are exact"
    save_torch_file(tensors, tmp_path / "model.safetensors")
    assert dict(resolved(tmp_path).overrides)["per_layer_model_projection"] == "q0bf16"


def test_those_of_a_package_are_not_added_again(phone: Path) -> None:
    request = resolved(phone)
    assert resolved(phone, overrides=request.overrides) == request
    assert resolved(phone, weights=False, overrides=request.overrides, probe=True).overrides == (
        request.overrides
    )


def test_another_checkpoint_is_refused(tmp_path: Path) -> None:
    models.write_checkpoint(tmp_path, models.E2B_LIKE)
    with pytest.raises(UsageError, match="is none") as caught:
        resolved(tmp_path)
    assert "-qat-mobile-transformers" in str(caught.value.hint)


def test_without_tensors_it_is_refused(phone: Path) -> None:
    with pytest.raises(UsageError, match="bits of each matrix"):
        resolved(phone, weights=False)


@pytest.mark.parametrize("quant", ["mobile", "f32", "q8f16"])
def test_an_adapter_is_refused_whatever_the_recipe(quant: str, phone: Path) -> None:
    with pytest.raises(UsageError, match="what an adapter adds to them would be rounded, too"):
        resolved(phone, quant=quant, adapters=("lora",))


def test_blocks_that_no_kernel_reads_are_refused(phone: Path, tmp_path: Path) -> None:
    tensors = load_file(phone / "model.safetensors")
    scales = tensors["model.embed_tokens.embedding_scale"]
    tensors["model.embed_tokens.embedding_scale"] = np.repeat(scales, 3, axis=1)
    save_file(tensors, tmp_path / "model.safetensors")
    for file in phone.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    with pytest.raises(QuantizationError, match="2 bits with a step for 32 columns"):
        resolved(tmp_path)


def cli_quant(path: Path) -> str:
    """The recipe of a command line that names none."""
    options = COMMAND.parse([str(path), "--target", "cpu", "-o", "out"])
    return compile_request(options).quant


def test_it_is_the_default_of_such_checkpoints_alone(
    phone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def note(request: CompileRequest, reporter: object) -> None:
        found.append(request.quant)
        raise UsageError("enough is known")

    monkeypatch.setattr(cli, "compile_model", note)
    for model, *options in ((str(phone),), (str(phone), "--quant", "f32"), ("tiny",)):
        assert cli.main([model, "--target", "cpu", "-o", "out", *options]) == 2
    assert found == ["mobile", "f32", "q4f16"]


def test_whole_tables_of_compressed_tensors_have_the_levels_that_they_lie_on(
    tmp_path: Path,
) -> None:
    phone_checkpoints.write_compressed(tmp_path)
    assert cli_quant(tmp_path) == "mobile"
    found = schemes_of(tmp_path)
    assert found["embed_tokens"] == "q2f32_row"
    assert found["embed_tokens_per_layer"] == "q4f32_256"
    assert found["layers.6.mlp.down_proj"] == "q2f32_row"
    assert found["layers.0.mlp.down_proj"] == "q4f32_row"


def test_a_table_is_held_to_one_scheme_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of 2 bits is one of 4 as well, in blocks and whole: three schemes need not be tried."""
    phone_checkpoints.write_compressed(tmp_path)
    tried: list[tuple[int, int]] = []
    is_exact = RowScheme.is_exact

    def noted(scheme: RowScheme, rows: np.ndarray) -> bool:
        if rows.shape[1] == phone_checkpoints.TEXT["hidden_size"]:
            tried.append((scheme.bits, scheme.block))
        return is_exact(scheme, rows)

    monkeypatch.setattr(RowScheme, "is_exact", noted)
    assert schemes_of(tmp_path)["embed_tokens"] == "q2f32_row"
    assert set(tried) == {(2, WHOLE_ROW)}


def test_whole_tables_on_no_levels_have_8_bits(tmp_path: Path) -> None:
    """bfloat16 holds what 2 bits stand for, and not the sevenfold of a step."""
    phone_checkpoints.write_compressed(tmp_path)
    tensors = load_torch_file(tmp_path / "model.safetensors")
    for name in ("embed_tokens", "embed_tokens_per_layer"):
        tensors[f"model.{name}.weight"] = tensors[f"model.{name}.weight"].to(torch.bfloat16)
    save_torch_file(tensors, tmp_path / "model.safetensors")
    found = schemes_of(tmp_path)
    assert found["embed_tokens"] == "q2f32_row"
    assert found["embed_tokens_per_layer"] == "q8f32_1"
    tensors["model.embed_tokens.weight"][-1, 1] += 1  # a row that is read last
    save_torch_file(tensors, tmp_path / "model.safetensors")
    assert schemes_of(tmp_path)["embed_tokens"] == "q8f32_1"


@pytest.mark.parametrize(("quant", "warned"), [("q4f16", True), ("f32", False)])
def test_a_recipe_that_rounds_again_is_named(
    quant: str, warned: bool, phone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolved(phone, quant=quant).overrides == ()
    assert ("rounds again" in capsys.readouterr().err) is warned
