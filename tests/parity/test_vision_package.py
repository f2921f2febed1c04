"""A package that takes pictures: compiled from a checkpoint, opened, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.runtime import Package
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.upload import Uploads
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import models, tolerances
from tests.packages import CONTEXT_LENGTH, compile_small
from tests.vision_models import (
    KINDS,
    TOKENS,
    Truth,
    compiled,
    config_of,
    config_values,
    random_picture,
    random_weights,
)

pytestmark = pytest.mark.parity


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unified", "clipped"])
def test_its_rows_are_those_of_its_checkpoint(kind: str, tmp_path: Path) -> None:
    text = models.KINDS[KINDS[kind][0]]
    checkpoint = models.write_checkpoint(tmp_path / "checkpoint", text, dtype="float32").path
    decoder = models.random_weights(text, dtype="float32")
    tensors = {f"model.language_model.{name}": value for name, value in decoder.items()}
    tensors |= random_weights(config_of(kind))
    write_safetensors(checkpoint / "model.safetensors", tensors, "float32")
    (checkpoint / "config.json").write_text(json.dumps(config_values(kind)))
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= TOKENS
    (checkpoint / "tokenizer.json").write_text(json.dumps(tokenizer))
    request = CompileRequest(
        model=str(checkpoint),
        target="cpu",
        quant="q8f16",
        output=tmp_path / "package",
        context_length=CONTEXT_LENGTH,
        prefill_chunk=70,  # which 12B's kind needs, whose pictures are whole
        image_tokens=70,
        modalities=frozenset({Modality.TEXT, Modality.IMAGE}),
    )
    compile_small(request)

    package, device = Package.open(tmp_path / "package"), Device.open("cpu")
    library = NativeLibrary(package.library_path, device)
    metadata = library.metadata()
    params = tvm_ffi.Array(package.load_parameters(metadata, Uploads(device)))
    picture = random_picture(4, 3, compiled(kind, "q8f16").block)
    args = [device.place(values) for values in picture.cells(picture.block)]
    found = device.read(library.compiled_function(abi.EMBED_IMAGE)(*args, params))

    truth = Truth(kind, compiled(kind, "q8f16").weights)
    expected = truth.rows(picture, int(KINDS[kind][1]["patch_size"]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerances.VISION_ROWS["q8f16"])
