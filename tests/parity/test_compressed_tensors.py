"""compressed-tensors, next to its own library and to transformers: the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import (
    QuantizationArgs,
    QuantizationConfig,
    QuantizationScheme,
    apply_quantization_config,
)
from safetensors.numpy import load_file
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

from gemma4_compile.checkpoint.match import Checkpoint, match, row_reader
from gemma4_compile.checkpoint.quantised.compressed_scheme import read_config
from gemma4_compile.checkpoint.quantised.read import dequantised
from gemma4_compile.checkpoint.safetensors_file import read_header, read_rows
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from tests import models

pytestmark = pytest.mark.parity

ROWS, COLUMNS = 48, 256
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "w4a16, groups of 32": ("pack-quantized", {"num_bits": 4, "group_size": 32}),
    "w4a16, groups of 128": ("pack-quantized", {"num_bits": 4, "group_size": 128}),
    "w4a16, rows": ("pack-quantized", {"num_bits": 4, "strategy": "channel"}),
    "w4a16, zero points": (
        "pack-quantized",
        {"num_bits": 4, "group_size": 64, "symmetric": False},
    ),
    "w8a16, zero points of rows": (
        "pack-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "w2a16": ("pack-quantized", {"num_bits": 2, "group_size": 64}),
    "w8a8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "w8a8, one scale": ("naive-quantized", {"num_bits": 8, "strategy": "tensor"}),
    "w8a8, zero points": (
        "int-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "fp8, rows": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "fp8, one scale": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8, blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 128]},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4": ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "group_size": 32}),
    "mxfp8": ("mxfp8-quantized", {"num_bits": 8, "type": "float", "group_size": 32}),
}


def scales_of(weight: torch.Tensor, args: QuantizationArgs) -> torch.Tensor:
    """Scales that leave some values clipped; powers of two for microscaling formats."""
    rows, columns = weight.shape
    if args.strategy == "tensor":
        blocks = weight.reshape(1, 1, 1, -1)
    elif args.strategy == "channel":
        blocks = weight.reshape(rows, 1, 1, columns)
    elif args.strategy == "block":
        height, width = args.block_structure
        blocks = weight.reshape(rows // height, height, columns // width, width).transpose(1, 2)
        blocks = blocks.reshape(rows // height, columns // width, 1, -1)
    else:
        blocks = weight.reshape(rows, -1, 1, args.group_size)
    largest = blocks.abs().amax(dim=(2, 3))
    levels = (
        {8: 448.0, 4: 6.0}[args.num_bits]
        if args.type == "float"
        else 2 ** (args.num_bits - 1) - 0.5
    )
    scales = largest / levels
    return scales[0] if args.strategy == "tensor" else scales


def compressed(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any], torch.Tensor]:
    """Tensors of a module, their `quantization_config`, and the weight that the library reads."""
    form, fields = FORMS[name]
    args = QuantizationArgs(**fields)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    weight = torch.from_numpy(
        np.random.default_rng(11).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    )
    scales = scales_of(weight, args)
    state = {"weight": weight, "weight_scale": scales}
    if "mx" in form:
        state["weight_scale"] = torch.exp2(torch.floor(torch.log2(scales)))
    if form.startswith("nvfp4"):
        state["weight_global_scale"] = torch.tensor([37.5])
        state["weight_scale"] = (scales * 37.5).to(torch.float8_e4m3fn).float()
    if not args.symmetric:
        generator = torch.Generator().manual_seed(5)
        span = 2 ** (args.num_bits - 1)
        zeros = torch.randint(-span, span, scales.shape, generator=generator)
        state["weight_zero_point"] = zeros.to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = {k: v for k, v in compressor.compress(state, scheme).items() if v is not None}
    expected = compressor.decompress(stored, scheme)["weight"]
    weights = json.loads(args.model_dump_json())
    group = {"targets": ["Linear"], "weights": weights, "format": form}
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    return stored, config, expected


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read_as_its_library_reads_it(name: str, tmp_path: Path) -> None:
    stored, config, expected = compressed(name)
    file = tmp_path / "model.safetensors"
    save_file({f"a.{end}": tensor.contiguous() for end, tensor in stored.items()}, file)
    tensors = dequantised({"quantization_config": config}, read_header(file))
    assert set(tensors) == {"a.weight"}
    tensor = tensors["a.weight"]
    assert tensor.shape == (ROWS, COLUMNS)
    whole = read_rows(tensor, 0, ROWS)
    rtol = 3e-7 if expected.dtype == torch.float32 else 2**-8  # of bfloat16, of NVFP4
    np.testing.assert_allclose(whole, expected.float().numpy(), rtol=rtol, atol=0)
    for begin, end in ((0, 5), (5, 31), (17, 17), (31, ROWS)):
        assert np.array_equal(read_rows(tensor, begin, end), whole[begin:end])


def compress_layers(path: Path, kind: str) -> dict[str, Any]:
    """Rewrite a checkpoint's linear layers in groups of 32; embeddings and norms stay."""
    args = QuantizationArgs(num_bits=4, group_size=32, strategy="group")
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format="pack-quantized")
    compressor = BaseCompressor.get_value_from_registry("pack-quantized")
    stored: dict[str, torch.Tensor] = {}
    ignored = ["lm_head"]
    for name, values in load_file(path / "model.safetensors").items():
        weight, module = torch.from_numpy(values), name.removesuffix(".weight")
        if not name.endswith("_proj.weight") or "per_layer_model" in name:
            stored[name] = weight
            if name.endswith(("_projection.weight", "_gate.weight", "router.proj.weight")):
                ignored.append(module)
            continue
        state = {"weight": weight, "weight_scale": scales_of(weight, args)}
        for end, tensor in compressor.compress(state, scheme).items():
            stored[f"{module}.{end}"] = tensor.contiguous()
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
        },
        "ignore": ignored,
    }
    (path / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize("kind", ["e2b", "dense"])
def test_a_model_is_read_as_transformers_reads_it(kind: str, tmp_path: Path) -> None:
    models.write_checkpoint(tmp_path, models.KINDS[kind], form="transformers")
    config = compress_layers(tmp_path, kind)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokens = torch.from_numpy(models.prompt(5))[None]
    with torch.no_grad():
        model(tokens)  # it decompresses its layers at the first
    expected = {name: value.detach().numpy() for name, value in model.named_parameters()}
    checkpoint = Checkpoint.open(tmp_path)
    matched = match(checkpoint.tensors, Gemma4Config.from_dict(config))
    read = row_reader(matched)
    layers = [name for name in matched if name.endswith("_proj.weight")]
    assert len(layers) > 20
    for name in layers:
        rows = read(name, 0, matched[name].row_count)
        np.testing.assert_allclose(rows, expected[f"model.{name}"], rtol=3e-7, atol=0)


STATIC: dict[str, Any] = {"num_bits": 8, "strategy": "tensor"}
ROUNDED: dict[str, tuple[list[list[str]], list[str]]] = {
    "classes": ([["Linear"], ["Embedding"]], ["lm_head"]),
    "patterns before classes": ([["Linear"], [r"re:.*mlp\..*"], [r"re:.*\.down_proj"]], []),
    "names before patterns": (
        [["re:.*proj"], ["model.layers.1.mlp.up_proj", "lm_head"], ["Linear"]],
        [r"re:.*layers\.2\.self_attn", "model.per_layer_model_projection"],
    ),
    "one target twice": ([["Linear"], ["Linear"]], ["re:model.layers.0"]),
    "a class is ignored": ([["re:.*"]], ["Gemma4TextScaledWordEmbedding"]),
    "every module": ([["Module"], ["re:layers"]], []),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_a_layer_is_rounded_where_its_library_rounds_it(name: str) -> None:
    targets, ignore = ROUNDED[name]
    ends = ({"input_activations": STATIC}, {"output_activations": STATIC})
    groups = {f"{i}": {"targets": one, **ends[i % 2]} for i, one in enumerate(targets)}
    model = Gemma4ForCausalLM(Gemma4TextConfig(**models.E2B_LIKE))
    library = QuantizationConfig(config_groups=groups, ignore=ignore)
    apply_quantization_config(model, library)
    ours = read_config({"config_groups": groups, "ignore": ignore}).groups
    assert ours is not None
    count = 0
    for module_name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            continue
        scheme, group = getattr(module, "quantization_scheme", None), ours.of(module_name)
        expected = () if scheme is None else (scheme.input_activations, scheme.output_activations)
        kinds = ("input_scale", "output_scale")
        assert (() if group is None else group.ends) == tuple(
            kind for kind, args in zip(kinds, expected, strict=False) if args is not None
        ), module_name
        count += scheme is not None
    assert count > 2
