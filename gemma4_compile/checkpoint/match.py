"""A Hugging Face checkpoint directory: config, tokenizer files, lazy tensors by name.

Opening reads configs and safetensors headers only. `match` then holds the tensors against the
parameter table: each must be there with its shape and a float dtype, and nothing else may be, save
what a text decoder does not use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gemma4_compile.checkpoint import kinds
from gemma4_compile.checkpoint.files import (
    CONFIG_FILE,
    GENERATION_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    check_place,
    read_json,
)
from gemma4_compile.checkpoint.json_text import MAX_VALUES
from gemma4_compile.checkpoint.leftovers import without_leftovers
from gemma4_compile.checkpoint.quantised.read import dequantised
from gemma4_compile.checkpoint.safetensors_file import (
    FLOAT_DTYPES,
    ID_DTYPES,
    Float32Array,
    TensorInfo,
    read_rows,
)
from gemma4_compile.checkpoint.spellings import usual_tensors
from gemma4_compile.checkpoint.weight_files import listing, open_tensors
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.component import Component
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.variants import DEQUANTISE
from gemma4_compile.model_spec.parameters import Source
from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.system.regular_files import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES

_CONVOLUTIONS = (".conv.weight", ".depthwise_conv1d.weight")  # of the audio tower
# A tokenizer has up to so much for each token of the model; the released ones a fifth of it, and
# six values: a word, and a merge of two in the list and in their own.
_TOKENIZER_BYTES, _TOKENIZER_VALUES = 256, 16

_UNSAID = (
    "config.json does not say how the weights were quantised: write the `quantization_config` that "
    "they were saved with into it (of AutoGPTQ, what `quantize_config.json` holds and "
    f'`"quant_method": "gptq"`), or {DEQUANTISE}'
)
_SHOWN_LETTERS = 40
_NO_VALUES = (
    "it was saved without its values, as DeepSpeed's and FSDP's parts are: save the model again "
    "with the parts gathered"
)
_VOCABULARY = re.compile(r"(embed_tokens|embed_tokens_per_layer|lm_head)\.weight$")
RESIZE_HINT = (
    "save the tokenizer and the model again from the same run, with save_pretrained; where tokens "
    "were added, after model.resize_token_embeddings(len(tokenizer))"
)


def vocabulary_of(
    tokenizer: Mapping[str, object], file: str = TOKENIZER_FILE
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Ids by token of a parsed `tokenizer.json`, and its added tokens, as they lie in the file.

    Raises
    ------
    CheckpointError
        Naming the file, if it has no vocabulary, or one of another kind than Gemma's.
    """
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens", [])
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    kind = model.get("type") if isinstance(model, dict) else None
    if isinstance(kind, str) and kind != "BPE":
        raise CheckpointError(
            f"`{file}` is of the kind {kind[:_SHOWN_LETTERS]!r}, expected `BPE`, that of Gemma's",
            hint="take the tokenizer files of the model that was trained; where the model was "
            "trained with this one, it is not read here",
        )
    if not isinstance(vocabulary, dict) or not isinstance(added, list):
        raise CheckpointError(f"`{file}` is damaged: no vocabulary", hint="download the file again")
    return vocabulary, [token for token in added if isinstance(token, dict)]


def is_beyond(token_id: object, vocab_size: int) -> bool:
    """Return whether a token id has no row in the model."""
    return type(token_id) is int and token_id >= vocab_size


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. `tensors` are by their full names in the files."""

    path: Path
    config: Mapping[str, object]
    generation_config: Mapping[str, object]
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, path: Path, option: str = "") -> Checkpoint:
        """Read configs and headers of a directory; `option` begins warnings.

        Raises
        ------
        CheckpointError
            If a file is missing, damaged or of a kind that is not read (only safetensors are).
        """
        if not path.is_dir():
            raise CheckpointError(
                f"no checkpoint directory at `{path}`",
                hint="give a directory with config.json and safetensors files, or a hub id",
            )
        config = read_json(path / CONFIG_FILE)
        tensors = dequantised(config, without_leftovers(open_tensors(path), option), option=option)
        return cls(path, config, read_generation_config(path), tensors)

    def tokenizer(self, vocab_size: int) -> tuple[dict[str, object], list[str]]:
        """The parsed `tokenizer.json` without added tokens beyond the model's, and those.

        Such a token (`[PAD]`, added without resizing the model) is in no prompt that the model can
        run; text that spells it is text.

        Raises
        ------
        CheckpointError
            If its vocabulary has ids that the model does not.
        """
        self._check_tokenizer()
        parsed = read_json(
            self.path / TOKENIZER_FILE,
            min(MAX_TOKENIZER_BYTES, MAX_JSON_BYTES + _TOKENIZER_BYTES * vocab_size),
            MAX_VALUES + _TOKENIZER_VALUES * vocab_size,
        )
        vocabulary, added = vocabulary_of(parsed)
        beyond = [token for token in added if is_beyond(token.get("id"), vocab_size)]
        added = [token for token in added if token not in beyond] if beyond else added
        ids = [*vocabulary.values(), *(token.get("id") for token in added)]
        wrong = [i for i in ids if type(i) is not int or not 0 <= i < vocab_size]
        if wrong:
            raise CheckpointError(
                f"`{TOKENIZER_FILE}` has token id {wrong[0]}, the model has {vocab_size} tokens",
                hint=RESIZE_HINT,
            )
        return {**parsed, "added_tokens": added}, [str(token.get("content")) for token in beyond]

    def _check_tokenizer(self) -> None:
        if not (self.path / TOKENIZER_FILE).exists():
            raise kinds.no_tokenizer(listing(self.path))

    def tokenizer_files(self) -> tuple[Path, ...]:
        """The files that a package takes over: `tokenizer.json` and what explains it."""
        self._check_tokenizer()
        names = (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, TEMPLATE_FILE, GENERATION_FILE)
        files = tuple(self.path / name for name in names if (self.path / name).is_file())
        for file in files:
            check_place(file)
        return files


def read_generation_config(path: Path) -> dict[str, object]:
    """The `generation_config.json` of a directory, empty if it has none."""
    file = path / GENERATION_FILE
    return read_json(file) if file.exists() else {}


def _owners(components: Sequence[Component], config: Gemma4Config) -> list[tuple[str, Component]]:
    """Components by the prefixes of their tensors, the longest first.

    Of those with one prefix it is that of the component that the config has.
    """
    present_last = sorted(components, key=lambda one: bool(one.parameters(config)))
    owners = {prefix: one for one in present_last for prefix in one.prefixes}
    return sorted(owners.items(), key=lambda owner: -len(owner[0]))


def match(
    tensors: Mapping[str, TensorInfo],
    config: Gemma4Config,
    components: Sequence[Component] = COMPONENTS,
) -> dict[str, TensorInfo]:
    """Hold a checkpoint's tensors against the components' parameters; returns them by source name.

    Raises
    ------
    CheckpointError
        If a tensor is missing, extra, there twice, or of a wrong shape or dtype.
    """
    owners = _owners(components, config)
    sources = {
        name: (source, component)
        for component in components
        for parameter in component.parameters(config)
        for source in parameter.sources
        for name in (source.name, source.twin)
        if name is not None
    }
    found: dict[str, TensorInfo] = {}
    for name, tensor in usual_tensors(tensors, components[0].prefixes[0]).items():
        prefix, component = next((o for o in owners if name.startswith(o[0])), ("", None))
        key = component.source_name(name, prefix) if component else name
        source, owner = sources.get(key, (None, None))
        if source is None or owner is not component:
            if component is not None and component.is_unused(key, config):
                continue
            raise _stranger(tensor)
        found[key] = _checked_tensor(tensor, source)
    for twin in [key for key in found if key != sources[key][0].name]:
        found[sources[twin][0].name] = found.pop(twin)
    missing = [
        component.tensor_name(name)
        for name, (source, component) in sources.items()
        if name == source.name and name not in found
    ]
    if missing:
        more = f" ({len(missing)} tensors are)" if len(missing) > 1 else ""
        hint = "the checkpoint is incomplete, or its config.json is of another model"
        if missing == [f"{HEAD}.weight"]:
            hint = (
                "save the model again with its head, or set `tie_word_embeddings` of config.json "
                "to true if the token embedding is its head"
            )
        raise CheckpointError(f"tensor `{missing[0]}` is missing{more}", hint=hint)
    return found


def _stranger(tensor: TensorInfo) -> CheckpointError:
    """The error for a tensor that no part of the model has."""
    who = kinds.quantised_by(tensor.name)
    if who is not None:
        return CheckpointError(
            f"tensor `{tensor.name}` in `{tensor.path.name}` is of a quantised checkpoint ({who})",
            hint=_UNSAID,
        )
    return CheckpointError(
        f"tensor `{tensor.name}` in `{tensor.path.name}` belongs to no part of the model",
        hint="the checkpoint and its config.json do not fit together; where transformers loads it, "
        "it leaves that tensor out: if that is right, save the model from there again, with "
        "save_pretrained",
    )


def _checked_tensor(tensor: TensorInfo, source: Source) -> TensorInfo:
    for leaf in tensor.leaves:
        _check_dtype(leaf, source)
    tensor = _channels_first(tensor, source)
    if tensor.shape != source.shape:
        raise CheckpointError(
            f"tensor `{tensor.name}` has shape {tensor.shape}, expected {source.shape}",
            hint=_NO_VALUES
            if 0 in tensor.shape
            else RESIZE_HINT
            if tensor.shape[1:] == source.shape[1:] and _VOCABULARY.search(tensor.name)
            else "the checkpoint and its config.json do not fit together",
        )
    return tensor


def _check_dtype(tensor: TensorInfo, source: Source) -> None:
    if source.is_ids and tensor.dtype not in ID_DTYPES:
        raise CheckpointError(
            f"tensor `{tensor.name}` has dtype {tensor.dtype}, expected one of "
            f"{', '.join(ID_DTYPES)}",
            hint="it holds token ids; save the drafter again with them as integers",
        )
    if not source.is_ids and tensor.dtype not in FLOAT_DTYPES:
        raise CheckpointError(
            f"tensor `{tensor.name}` has dtype {tensor.dtype}, expected one of "
            f"{', '.join(FLOAT_DTYPES)}",
            hint=_UNSAID,
        )


def _channels_first(tensor: TensorInfo, source: Source) -> TensorInfo:
    """The weight of a convolution as torch has it; MLX stores its input channels last."""
    last = len(source.shape) - 1
    is_convolution = source.name.endswith(_CONVOLUTIONS) and len(tensor.shape) == last + 1
    if not is_convolution or tensor.shape == source.shape:
        return tensor
    axes = (0, last, *range(1, last))
    if tuple(tensor.shape[axis] for axis in axes) != source.shape:
        return tensor
    return replace(tensor, shape=source.shape, parts=(tensor,), axes=axes, decoder=None)


def row_reader(matched: Mapping[str, TensorInfo]) -> Callable[[str, int, int], Float32Array]:
    """A function that reads rows [begin, end) of a source by its name, as float32.

    Scalars are bounds of clips: an infinite one, which bounds nothing, is read as the largest
    float32, so that a package holds finite numbers only.
    """
    largest = np.finfo(np.float32).max

    def read(name: str, begin: int, end: int) -> Float32Array:
        rows = read_rows(matched[name], begin, end)
        return rows if matched[name].shape else np.clip(rows, -largest, largest)

    return read
