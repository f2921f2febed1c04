"""`config.json` from a GGUF file: what its metadata says, and what its tensors show.

llama.cpp keeps no flag of `attention_k_eq_v`, of a tied head or of the rotated part of a head: they
show in the tensors that are there, their shapes, and the divisors of the rotary embedding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_compile.checkpoint.gguf import names
from gemma4_compile.checkpoint.gguf.header import Entry
from gemma4_compile.checkpoint.gguf.metadata import Metadata
from gemma4_compile.checkpoint.safetensors_file import Float32Array
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.model_spec.config.text import MAX_LAYERS
from gemma4_compile.options.process import warn
from gemma4_compile.types import JsonObject

USUAL_CHOSEN = 32
"""Clusters that a drafter chooses, of all released ones."""

UNROTATED = 1e29
"""Divisors of pairs that are not rotated are larger."""

_SWA = "_swa"
# Keys that say nothing that the tensors do not, or nothing about what the model computes.
_SAID_OTHERWISE = (
    *("vocab_size", "attention.head_count_kv", "attention.value_length", "nextn_predict_layers"),
    *("attention.value_length_swa", "n_centroids", "centroid_top_k", "use_ordered_embeddings"),
)
_SHOWN_KEYS = 8


@dataclass(frozen=True)
class ModelFile:
    """What a config is read from.

    Attributes
    ----------
    where : the file's name in messages
    divisors : the values of `names.ROPE_DIVISORS`; None where there is no such tensor
    dtype : what constants are rounded to
    """

    where: str
    architecture: str
    metadata: Metadata
    tensors: Mapping[str, Entry]
    divisors: Float32Array | None
    dtype: str

    def key(self, name: str) -> str:
        """A key of the architecture."""
        return f"{self.architecture}.{name}"

    def rows(self, tensor: str) -> int | None:
        """Rows of a matrix, elements of a vector; None where it is not there."""
        return self.tensors[tensor].shape[0] if tensor in self.tensors else None

    def inconsistent(self, what: str) -> CheckpointError:
        """The error for a file whose parts do not fit together."""
        return CheckpointError(
            f"`{self.where}`: {what}",
            hint="convert the model again with llama.cpp, or give its safetensors checkpoint",
        )


def config_of(file: ModelFile) -> JsonObject:
    """The parsed `config.json` of a text decoder, or of a drafter.

    Raises
    ------
    CheckpointError
        Naming the key or the tensor that is missing or does not fit the others.
    """
    text = _text(file)
    if file.architecture == names.TARGET:
        config = {"architectures": ["Gemma4ForCausalLM"], **text}
    else:
        config = _drafter(file, text)
    unknown = [
        name
        for name in file.metadata.names(f"{file.architecture}.")
        if name not in file.metadata.asked
        and name.removeprefix(f"{file.architecture}.") not in _SAID_OTHERWISE
    ]
    if unknown:
        shown = ", ".join(f"`{printable(name)}`" for name in unknown[:_SHOWN_KEYS])
        warn(
            f"`{file.where}`: {shown} unknown here, and left out",
            "if the model answers badly, give its safetensors checkpoint",
        )
    return config


def _drafter(file: ModelFile, text: JsonObject) -> JsonObject:
    count = file.rows(names.CENTROIDS) if names.has_clusters(file.tensors) else None
    clusters = {}
    if count is not None:  # how many are chosen is in no key: drafts alone depend on it
        clusters = {
            "num_centroids": count,
            "centroid_intermediate_top_k": min(USUAL_CHOSEN, count),
        }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": text["dtype"],
        "backbone_hidden_size": file.metadata.integer(file.key("embedding_length_out")),
        "use_ordered_embeddings": count is not None,
        **clusters,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
    }


def _text(file: ModelFile) -> JsonObject:
    values, key = file.metadata, file.key
    layers = values.integer(key("block_count"))
    if not 1 <= layers <= MAX_LAYERS:
        raise values.wrong(key("block_count"), f"1 to {MAX_LAYERS}", layers)
    vocabulary = file.rows(names.EMBEDDING)
    if vocabulary is None:
        raise file.inconsistent(f"tensor `{names.EMBEDDING}` is missing")
    shared = values.integer(key("attention.shared_kv_layers"), 0)
    kinds = _kinds(file, layers)
    ple = values.integer(key("embedding_length_per_layer_input"), 0)
    softcap = key("final_logit_softcapping")
    return {
        "model_type": "gemma4_text",
        "dtype": file.dtype,
        "vocab_size": vocabulary,
        "hidden_size": values.integer(key("embedding_length")),
        "num_hidden_layers": layers,
        "layer_types": [kind.value for kind in kinds],
        "num_attention_heads": values.integer(key("attention.head_count")),
        **_heads(file, kinds),
        **_widths(file, layers, layers - shared),
        "sliding_window": values.integer(key("attention.sliding_window")),
        "max_position_embeddings": values.integer(key("context_length")),
        "rms_norm_eps": values.number(key("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(file, kinds),
        "hidden_size_per_layer_input": ple,
        "vocab_size_per_layer_input": file.rows(names.PER_LAYER_EMBEDDING) or 0,
        "num_kv_shared_layers": shared,
        **_experts(file),
        "final_logit_softcapping": None if values.get(softcap) is None else values.number(softcap),
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "use_bidirectional_attention": None,  # of pictures, which such a file has not
        "tie_word_embeddings": names.HEAD not in file.tensors,
        **_tokens(values, vocabulary),
    }


def _tokens(values: Metadata, vocabulary: int) -> JsonObject:
    """Ids of tokens, those of Gemma 4 where the file names none."""
    usual = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    keys = {"pad_token_id": "padding_token_id"}
    return {
        name: values.integer(f"tokenizer.ggml.{keys.get(name, name)}", min(usual_id, vocabulary))
        for name, usual_id in usual.items()
    }


def _kinds(file: ModelFile, layers: int) -> list[AttentionKind]:
    key = file.key("attention.sliding_window_pattern")
    slides = file.metadata.by_layer(key, layers)
    if any(value not in (0, 1) for value in slides):
        raise file.metadata.wrong(key, "true of the layers that slide, and false", slides)
    if slides[-1]:
        raise file.metadata.wrong(key, "full attention of the last layer", "a window")
    return [AttentionKind.SLIDING if slide else AttentionKind.FULL for slide in slides]


def _heads(file: ModelFile, kinds: Sequence[AttentionKind]) -> JsonObject:
    """Sizes of heads; how many hold keys is what the matrices show, where a layer has one."""
    values, key = file.metadata, file.key
    full = values.integer(key("attention.key_length"))
    sliding = values.integer(key("attention.key_length_swa"), full)
    sizes = {AttentionKind.FULL: full, AttentionKind.SLIDING: sliding}
    if min(sizes.values()) < 1:
        raise values.wrong(key("attention.key_length"), "1 or more", min(sizes.values()))
    for suffix, size in (("", full), (_SWA, sliding)):
        for name in (f"attention.value_length{suffix}", f"rope.dimension_count{suffix}"):
            found = values.optional_integer(key(name))
            if found not in (None, size):
                raise values.wrong(key(name), f"{size}, as `attention.key_length{suffix}`", found)
    declared = values.by_layer(key("attention.head_count_kv"), len(kinds))
    heads: dict[AttentionKind, int] = {}
    k_eq_v = False
    for index, kind in enumerate(kinds):
        rows = file.rows(f"blk.{index}.attn_k.weight")
        count = declared[index] if rows is None else rows // sizes[kind]
        if heads.setdefault(kind, count) != count:
            raise file.inconsistent(
                f"layer {index} has {count} heads of keys, the {kind.value} layers before it "
                f"{heads[kind]}"
            )
        if rows is not None and kind is AttentionKind.FULL:
            k_eq_v |= f"blk.{index}.attn_v.weight" not in file.tensors
    of_full = heads[AttentionKind.FULL]
    of_sliding = heads.get(AttentionKind.SLIDING, of_full)
    has_keys = any(name.endswith(".attn_k.weight") for name in file.tensors)
    if of_full != of_sliding and not k_eq_v and has_keys:
        raise file.inconsistent(
            f"full layers have {of_full} heads of keys, sliding layers {of_sliding}, and values of "
            "their own, as no Gemma 4 has"
        )
    return {
        "head_dim": sliding,
        "global_head_dim": full,
        "num_key_value_heads": of_sliding,
        "num_global_key_value_heads": of_full if of_full != of_sliding or k_eq_v else None,
        "attention_k_eq_v": k_eq_v or of_full != of_sliding,
    }


def _widths(file: ModelFile, layers: int, owners: int) -> JsonObject:
    """Width of the MLP, and whether it is double where a layer has no keys of its own."""
    key = file.key("feed_forward_length")
    widths = file.metadata.by_layer(key, layers)
    double = owners < layers and widths[-1] == 2 * widths[0]
    expected = [widths[0] * (1 + (double and index >= owners)) for index in range(layers)]
    if widths != expected:
        raise file.metadata.wrong(key, "one width, or twice of it where keys are shared", widths)
    return {"intermediate_size": widths[0], "use_double_wide_mlp": double}


def _experts(file: ModelFile) -> JsonObject:
    values, key = file.metadata, file.key
    used = values.optional_integer(key("expert_used_count"))
    width = values.optional_integer(key("expert_feed_forward_length"))
    count = values.integer(key("expert_count"), 0)
    if not count:
        return {"enable_moe_block": False}
    stack = file.tensors.get("blk.0.ffn_down_exps.weight")
    return {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": used,
        "moe_intermediate_size": stack.shape[-1] if width is None and stack else width,
    }


def _rope(file: ModelFile, kinds: Sequence[AttentionKind]) -> JsonObject:
    values, key = file.metadata, file.key
    scaling = values.text(key("rope.scaling.type"))
    if scaling not in (None, "none"):
        raise values.wrong(key("rope.scaling.type"), "none", scaling)
    pairs = values.integer(key("attention.key_length")) // 2
    if file.divisors is None:
        raise file.inconsistent(
            f"tensor `{names.ROPE_DIVISORS}` is missing, which says what full layers rotate"
        )
    rotated = int(np.count_nonzero(file.divisors < UNROTATED))
    if len(file.divisors) != pairs or not (file.divisors[:rotated] == 1).all():
        raise file.inconsistent(
            f"tensor `{names.ROPE_DIVISORS}` is not made of ones and of what is not rotated, for "
            f"{pairs} pairs"
        )
    return {
        AttentionKind.SLIDING.value: {
            "rope_type": "default",
            "rope_theta": values.number(key("rope.freq_base_swa"), 10_000.0),
        },
        AttentionKind.FULL.value: {
            "rope_type": "proportional",
            "rope_theta": values.number(key("rope.freq_base"), 1_000_000.0),
            "partial_rotary_factor": _share(rotated, pairs),
        },
    }


def _share(rotated: int, pairs: int) -> float:
    """The share of a head that is rotated, from which transformers makes the number of pairs."""
    share = rotated / pairs
    return share if int(share * 2 * pairs // 2) == rotated else (rotated + 0.5) / pairs
