"""The same weights under other names: one table of spellings, read into the usual names.

A name is read where one reading is certain: what wraps a model while it is trained adds segments
that no tensor of Gemma 4 has, and whether a file was saved from the whole model, from its inner
model or from its text decoder alone shows in the front alone. Any other name stays as it is, and
`match` says that it belongs to no part of the model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gemma4_compile.checkpoint.safetensors_file import TensorInfo, rows_of
from gemma4_compile.checkpoint.same_weights import holds_same
from gemma4_compile.errors import CheckpointError, printable

WRAPPERS: Mapping[str, str] = {
    "_orig_mod": "torch.compile",
    "module": "DistributedDataParallel, DataParallel and DeepSpeed",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_forward_module": "Lightning's strategies",
}
"""Segments of a name that say what a module was wrapped in, by who puts them there."""

MERGED_FRONT = "base_model.model."
"""Of a model whose adapter PEFT has merged, saved with the PEFT model around it."""

TEXT_FRONTS: Mapping[str, str] = {
    "model.language_model.": "transformers' files of the whole model",
    "model.": "a text decoder with its head, or the drafter",
    "": "a text decoder alone",
    "language_model.": "the inner model, without its head",
    "language_model.model.": "MLX",
    "model.language_model.model.": "transformers 5.10 to 5.24, of some models",
    "language_model.model.model.": "the same, without its head",
    "model.model.language_model.": "a module whose attribute `model` is the whole model",
    "model.model.": "the same of a text decoder",
}
"""What stands in front of a text decoder's tensors, by who writes it."""

PART_FRONTS = ("model.", "", "model.model.")
"""What stands in front of the other parts of a model: towers and projections."""

HEAD_FRONTS = ("", "model.", "language_model.", "model.language_model.")
"""What stands in front of what is beside the inner model: the head, a drafter's projections."""

_TEXT = (
    *("layers", "norm", "embed_tokens", "embed_tokens_per_layer"),
    *("per_layer_model_projection", "per_layer_projection_norm"),
    *("ple", "embedding_projection"),  # of an encoder
    *("altup_projections", "altup_unembed_projections"),  # of Gemma 3n
)
_PARTS = ("vision_tower", "vision_embedder", "embed_vision", "audio_tower", "embed_audio")
_HEADS = ("lm_head", "pre_projection", "post_projection", "masked_embedding")
_NAME = re.compile(
    r"(?P<front>(?:(?:model|language_model)\.){0,3})"
    rf"(?P<tensor>(?P<root>{'|'.join((*_TEXT, *_PARTS, *_HEADS))})\..+)"
)

# As transformers names them in memory (5.24, of `gemma4_unified`).
_IN_MEMORY = (
    (
        re.compile(r"embed_vision\.(patch_ln1|patch_dense|patch_ln2|pos_embedding|pos_norm)\b"),
        r"vision_embedder.\1",
    ),
    (
        re.compile(r"embed_vision\.multimodal_embedder\.embedding_projection\b"),
        "embed_vision.embedding_projection",
    ),
)

_UNMERGED = re.compile(r"(?:^|\.)(?:base_layer|modules_to_save|original_module|lora_\w+)(?:\.|$)")

_EXPERTS = re.compile(
    r"(?P<prefix>.+\.experts)\."
    r"(?:switch_glu\.|(?P<index>0|[1-9]\d{0,3})\.)?"
    r"(?P<projection>gate_proj|up_proj|gate_up_proj|down_proj)(?:\.weight)?"
)


_ONE_FORM = (
    "save the model again, with save_pretrained of transformers, which writes one form of experts"
)


def usual_name(name: str, text_front: str) -> str:
    """The name that a tensor has in the released files; one that has no other spelling stays.

    Parameters
    ----------
    text_front : what the usual names of the text decoder begin with
    """
    bare = ".".join(segment for segment in name.split(".") if segment not in WRAPPERS)
    found = _NAME.fullmatch(bare.removeprefix(MERGED_FRONT))
    if found is None:
        return name
    front, tensor, root = found["front"], found["tensor"], found["root"]
    if root in _TEXT:
        return f"{text_front}{tensor}" if front in TEXT_FRONTS else name
    if root in _HEADS:
        return tensor if front in HEAD_FRONTS else name
    for pattern, usual in _IN_MEMORY:
        tensor = pattern.sub(usual, tensor)
    return f"model.{tensor}" if front in PART_FRONTS else name


def usual_tensors(tensors: Mapping[str, TensorInfo], text_front: str) -> dict[str, TensorInfo]:
    """A checkpoint's tensors by their usual names, experts in the two stacks of the released files.

    Raises
    ------
    CheckpointError
        If an adapter is not merged, two tensors of one name differ, or experts are not complete.
    """
    usual: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        if _UNMERGED.search(name):
            raise CheckpointError(
                f"tensor `{printable(name)}` in `{tensor.path.name}` is of an adapter that is not "
                "merged into the model",
                hint="load it with peft, call merge_and_unload() and save_pretrained()",
            )
        key = usual_name(name, text_front)
        if key in usual and not holds_same(usual[key], tensor):
            raise CheckpointError(
                f"tensors `{usual[key].name}` and `{name}` are the same, with different values",
                hint="save the model again with one of them: the other may be older",
            )
        usual.setdefault(key, tensor)
    return _with_stacked_experts(usual)


@dataclass
class _Experts:
    """Matrices of one layer's experts, by projection, in the order of the experts."""

    stacks: dict[str, TensorInfo]
    single: dict[str, dict[int, TensorInfo]]

    def matrices(self, prefix: str, projection: str) -> list[TensorInfo]:
        """Those of one projection, (rows, cols) each; none if there are none."""
        stack, single = self.stacks.get(projection), self.single.get(projection, {})
        if stack is not None and single:
            raise CheckpointError(
                f"`{prefix}` has `{projection}` both as a stack and one by one", hint=_ONE_FORM
            )
        if stack is not None:
            if len(stack.shape) != 3:
                raise CheckpointError(
                    f"tensor `{stack.name}` has shape {stack.shape}, expected (experts, rows, "
                    "cols)",
                    hint=_ONE_FORM,
                )
            rows = stack.shape[1]
            return [rows_of(stack, rows * i, rows * (i + 1)) for i in range(stack.shape[0])]
        missing = next((i for i in range(len(single)) if i not in single), None)
        if missing is not None:
            raise CheckpointError(
                f"`{prefix}.{missing}.{projection}` is missing, the checkpoint has expert "
                f"{max(single)}",
                hint="download the checkpoint again, or save it again",
            )
        return [single[i] for i in range(len(single))]


def _with_stacked_experts(tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Experts that are stored one by one, or gate and up apart, as the two stacks."""
    found: dict[str, _Experts] = {}
    rest: dict[str, TensorInfo] = {}
    for name, tensor in tensors.items():
        parts = _EXPERTS.fullmatch(name)
        if parts is None:
            rest[name] = tensor
            continue
        experts = found.setdefault(parts["prefix"], _Experts({}, {}))
        if parts["index"] is not None:
            one = experts.single.setdefault(parts["projection"], {})
            if one.setdefault(int(parts["index"]), tensor) is not tensor:
                raise CheckpointError(f"tensor `{tensor.name}` is there twice", hint=_ONE_FORM)
        elif experts.stacks.setdefault(parts["projection"], tensor) is not tensor:
            raise CheckpointError(f"tensor `{tensor.name}` is there twice", hint=_ONE_FORM)
    for prefix, experts in found.items():
        for projection in ("gate_up_proj", "down_proj"):
            stack = experts.stacks.get(projection)
            if stack is not None and stack.name.endswith(projection):
                rest[f"{prefix}.{projection}"] = stack  # as the released files have it
                continue
            matrices = experts.matrices(prefix, projection)
            if matrices:
                rest[f"{prefix}.{projection}"] = _stacked(f"{prefix}.{projection}", matrices)
        halves = [experts.matrices(prefix, name) for name in ("gate_proj", "up_proj")]
        if not any(halves):
            continue
        if len(halves[0]) != len(halves[1]):
            raise CheckpointError(
                f"`{prefix}` has {len(halves[0])} `gate_proj` and {len(halves[1])} `up_proj`",
                hint="the checkpoint is incomplete: download or save it again",
            )
        name = f"{prefix}.gate_up_proj"
        if name in rest:
            raise CheckpointError(
                f"`{prefix}` has `gate_proj` and `up_proj` beside `gate_up_proj`", hint=_ONE_FORM
            )
        pairs = zip(*halves, strict=True)
        rest[name] = _stacked(name, [matrix for pair in pairs for matrix in pair], together=2)
    return rest


def _stacked(name: str, matrices: list[TensorInfo], together: int = 1) -> TensorInfo:
    """A stack of matrices; `together` of them, one after the other, are one of its own."""
    first = matrices[0]
    for matrix in matrices:
        if len(matrix.shape) != 2 or matrix.shape != first.shape:
            raise CheckpointError(
                f"tensor `{matrix.name}` has shape {matrix.shape}, expected a matrix of the shape "
                f"of `{first.name}`, {first.shape}",
                hint=_ONE_FORM,
            )
    rows, cols = first.shape
    return replace(
        first,
        name=name,
        shape=(len(matrices) // together, together * rows, cols),
        nbytes=sum(matrix.nbytes for matrix in matrices),
        parts=tuple(matrices),
        decoder=None,
    )
