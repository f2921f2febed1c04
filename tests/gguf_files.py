"""GGUF files of small checkpoints, written by the `gguf` package as llama.cpp's converter does.

Names come from the package's table of names; what its converter does beside them is written here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.models import FULL, SLIDING, Checkpoint, random_weights

Type = gguf.GGMLQuantizationType
Change = Callable[[gguf.GGUFWriter], None]
Float32Array = npt.NDArray[np.float32]
Choose = Callable[[str, tuple[int, ...]], Type]
VISIBLE = (
    *("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"),
    *("<|tool_response>", "<tool_response|>", '<|"|>'),
)
_OTHER_NAMES = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}


def of_name(name: str) -> Type:
    """The type of a name."""
    return next(kind for kind in Type if kind.name == name)


def all_of(kind: Type) -> Choose:
    """Matrices of one type; vectors, and the router, are float32, as the converter has them."""

    def choose(name: str, shape: tuple[int, ...]) -> Type:
        is_plain = len(shape) < 2 or "ffn_gate_inp" in name
        return Type.F32 if is_plain else kind

    return choose


@functools.cache
def _table(layers: int) -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, layers)


def gguf_name(name: str, layers: int) -> str:
    """The name in GGUF of a text tensor, which is given without prefix."""
    if name.startswith("layers."):
        _, index, rest = name.split(".", 2)
        if rest in _OTHER_NAMES:
            return f"blk.{index}.{_OTHER_NAMES[rest]}"
    full = name if name.startswith("lm_head") else f"model.{name}"
    bare = full.removesuffix(".weight")
    found = _table(layers).get_name(bare)
    assert found is not None, name
    return f"{found}.weight"


def divisors(text: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """What full layers divide their frequencies by."""
    size, share = text["global_head_dim"], text["rope_parameters"][FULL]["partial_rotary_factor"]
    rotated = int(size * share / 2)
    return np.array([1.0] * rotated + [1e30] * (size // 2 - rotated), np.float32)


def add_config(writer: gguf.GGUFWriter, text: Mapping[str, Any]) -> None:
    """Metadata of a text decoder."""
    layers, shared = text["num_hidden_layers"], text["num_kv_shared_layers"]
    slides = [kind == SLIDING for kind in text["layer_types"]]
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_block_count(layers)
    writer.add_embedding_length(text["hidden_size"])
    width = text["intermediate_size"]
    if text["use_double_wide_mlp"]:
        writer.add_feed_forward_length(
            [width * (1 + (i >= layers - shared)) for i in range(layers)]
        )
    else:
        writer.add_feed_forward_length(width)
    writer.add_head_count(text["num_attention_heads"])
    heads, of_full = text["num_key_value_heads"], text["num_global_key_value_heads"]
    writer.add_head_count_kv(
        heads if of_full is None else [heads if slide else of_full for slide in slides]
    )
    rope = text["rope_parameters"]
    writer.add_rope_freq_base(rope[FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(rope[SLIDING]["rope_theta"])
    writer.add_layer_norm_rms_eps(text["rms_norm_eps"])
    if text.get("num_experts"):
        writer.add_expert_count(text["num_experts"])
        writer.add_expert_used_count(text["top_k_experts"])
        writer.add_expert_feed_forward_length(text["moe_intermediate_size"])
    writer.add_key_length(text["global_head_dim"])
    writer.add_value_length(text["global_head_dim"])
    writer.add_key_length_swa(text["head_dim"])
    writer.add_value_length_swa(text["head_dim"])
    writer.add_rope_dimension_count(text["global_head_dim"])
    writer.add_rope_dimension_count_swa(text["head_dim"])
    if text["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(text["final_logit_softcapping"])
    writer.add_sliding_window(text["sliding_window"])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(text["hidden_size_per_layer_input"])
    writer.add_sliding_window_pattern(slides)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    """The tokenizer of a checkpoint's folder, and its chat template."""
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    ids = {**tokenizer["model"]["vocab"]}
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    ids.update({content: token["id"] for content, token in added.items()})
    tokens = sorted(ids, key=ids.__getitem__)

    def kind(token: str) -> gguf.TokenType:
        if token in added:
            whole = token in VISIBLE or not added[token]["special"]
            return gguf.TokenType.USER_DEFINED if whole else gguf.TokenType.CONTROL
        is_byte = len(token) == 6 and token.startswith("<0x")
        return gguf.TokenType.BYTE if is_byte else gguf.TokenType.NORMAL

    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * len(tokens))
    writer.add_token_types([kind(token) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    for name in ("bos", "eos", "pad", "mask"):
        getattr(writer, f"add_{name}_token_id")(ids[config[f"{name}_token"]])
    writer.add_unk_token_id(ids[config["unk_token"]])
    writer.add_chat_template((folder / "chat_template.jinja").read_text("utf-8"))
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)


def add_tensor(
    writer: gguf.GGUFWriter, name: str, values: npt.NDArray[np.float32], kind: Type
) -> None:
    """One tensor, in a type that the package can write."""
    if kind in (Type.F32, Type.F16):
        writer.add_tensor(name, values.astype(np.float32 if kind is Type.F32 else np.float16))
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def write_gguf(
    path: Path,
    checkpoint: Checkpoint,
    choose: Choose,
    *,
    tokenizer: Path | None = None,
    change: Change = lambda writer: None,
    without: tuple[str, ...] = (),
) -> Path:
    """Write a checkpoint; `change` is called before the tensors, `without` are left out."""
    text = checkpoint.text_config
    writer = gguf.GGUFWriter(path, "gemma4")
    add_config(writer, text)
    if tokenizer is not None:
        add_tokenizer(writer, tokenizer)
    change(writer)
    if "rope_freqs.weight" not in without:
        writer.add_tensor("rope_freqs.weight", divisors(text))
    for name, values in checkpoint.weights.items():
        place = gguf_name(name, text["num_hidden_layers"])
        if place not in without:
            add_tensor(writer, place, values, choose(place, values.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@functools.cache
def weights_for(text: str) -> Mapping[str, Float32Array]:
    return random_weights(json.loads(text))


def made(
    tmp_path: Path, text: Mapping[str, Any], choose: Choose, **options: Any
) -> tuple[Checkpoint, Path]:
    """A model's weights, and their file; of the checkpoint nothing is written."""
    weights = weights_for(json.dumps(text, sort_keys=True))
    checkpoint = Checkpoint(tmp_path, text, weights, "float32")
    return checkpoint, write_gguf(tmp_path / "model.gguf", checkpoint, choose, **options)


def of_type(kind: str, name: str) -> Change:
    """Adds a tensor of a type, whose bytes are zeros."""

    def add(writer: gguf.GGUFWriter) -> None:
        elements, nbytes = gguf.GGML_QUANT_SIZES[of_name(kind)]
        columns = max(256, elements)
        stored = np.zeros((256, columns // elements * nbytes), np.uint8)
        writer.add_tensor(name, stored, raw_dtype=of_name(kind))

    return add


def adding(key: str, value: Any, kind: str = "uint32") -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        for entries in writer.kv_data:
            entries.pop(key, None)
        if value is not None:
            getattr(writer, f"add_{kind}")(key, value)

    return change
