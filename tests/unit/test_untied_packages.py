"""Packages with a head of its own: kernels of every target, and parts that must fit together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.compile.compilation import config_digest
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import UsageError
from gemma4_compile.kernels import lower_library
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import drafters, models, packages
from tests.marks import slow_unless

pytestmark = pytest.mark.package

HEAD = "lm_head.weight"


@pytest.mark.parametrize(
    ("target", "limits", "activations"),
    slow_unless(
        lambda target, limits, activations: limits == "compat",
        [
            ("webgpu", "compat", "float"),
            ("webgpu", "h200", "int8"),
            ("metal", "default", "float"),
            ("cuda", "default", "int8"),
        ],
    ),
)
def test_every_target_has_kernels_for_heads_of_their_own(
    target: str, limits: str, activations: str, tmp_path: Path
) -> None:
    model = models.write_checkpoint(tmp_path / "model", models.UNTIED["e2b, untied"]).path
    values = drafters.drafter_config("e2b", tied=False)
    drafter = drafters.write_drafter(tmp_path / "drafter", "e2b", values=values).path
    library = lower_library(
        CompileRequest(
            str(model),
            target,
            "q4f16",
            Path(),
            limits=limits,
            activations=activations,
            drafter=str(drafter),
        )
    )
    assert {abi.DECODE, abi.PREFILL, abi.DRAFT, abi.VERIFY} <= library.calls.keys()


def schemes(package: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"][
        "schemes"
    ]
    return found


def test_provenance_names_the_head_s_scheme_where_there_is_one(tmp_path: Path) -> None:
    """Of tied models it is as before, byte for byte."""
    for kind, known in (("unified", False), ("unified, untied", True)):
        model = models.write_checkpoint(tmp_path / f"{kind} model", models.ALL[kind]).path
        package = tmp_path / f"{kind} package"
        packages.compile_small(CompileRequest(str(model), "cpu", "q4f16", package, only="weights"))
        assert ("lm_head" in schemes(package)) == known
    tied = Gemma4Config.from_preset("gemma-4-E2B-it")
    assert config_digest(tied) != config_digest(replace(tied, ties_head=False))


def test_a_library_of_a_tied_head_does_not_fit_weights_with_another(tmp_path: Path) -> None:
    """The first is made of config.json alone, which ties what the files keep apart."""
    model = models.write_checkpoint(tmp_path / "model", models.UNIFIED_LIKE)
    weights = {models.tensor_name(name): values for name, values in model.weights.items()}
    (model.path / "model.safetensors").unlink()
    asked = CompileRequest(str(model.path), "cpu", "f32", tmp_path / "package", only="library")
    packages.compile_small(asked)
    weights[HEAD] = weights[models.tensor_name("embed_tokens.weight")] + np.float32(1)
    write_safetensors(model.path / "model.safetensors", weights, "float32")
    with pytest.raises(UsageError, match="the new weights would not fit"):
        packages.compile_small(replace(asked, only="weights"))
