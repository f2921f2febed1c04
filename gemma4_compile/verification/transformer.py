"""transformers in float32, one layer in memory at a time: the truth that packages are held against.

The model is made without weights. A layer's weights are read just before it runs and dropped after
it; of the embedding tables only the rows of the prompt's tokens are read, and the head multiplies
block by block. This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers.models.gemma4.modeling_gemma4 import (
    Gemma4ForConditionalGeneration,
    Gemma4TextModel,
)
from transformers.models.gemma4_unified.modeling_gemma4_unified import (
    Gemma4UnifiedForConditionalGeneration,
    Gemma4UnifiedTextModel,
)

from gemma4_compile.media.inputs import Picture
from gemma4_compile.model_spec.text.attention_config import AttentionKind
from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.runtime.media_prompt import Prompt
from gemma4_compile.types import JsonObject
from gemma4_compile.verification import towers

Float32Array = npt.NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]

HEAD_BLOCK_BYTES = 256 << 20
_PICTURE_TYPE, _SOUND_TYPE = 1, 3  # of rows, as transformers' processors name them
medium_rows, scaled = towers.medium_rows, towers.scaled
VERSIONS = {"transformers": transformers.__version__, "torch": str(torch.__version__)}


@dataclass(frozen=True)
class ReferenceRun:
    """Results of transformers at some positions of one sequence.

    Attributes
    ----------
    logits : (positions, vocab_size), float32
    hidden : (layers, positions, hidden_size), float32, the residual stream after each layer
    normed : (positions, hidden_size), float32, after the final norm
    keys_values : K and V (T, heads, head_dim), float32, of all positions of the sequence, of the
        last layer of each kind that owns some: what a drafter reads
    """

    logits: Float32Array
    hidden: Float32Array
    normed: Float32Array
    keys_values: Mapping[AttentionKind, tuple[Float32Array, Float32Array]]


class _RowEmbedding(torch.nn.Module):
    """An embedding table that stays on disk."""

    def __init__(self, name: str, read: RowReader, scale: float) -> None:
        super().__init__()
        self._name, self._read, self._scale = name, read, scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(1, S) token ids -> (1, S, cols), times the table's scale."""
        wanted, where = torch.unique(ids, return_inverse=True)
        rows = [self._read(self._name, int(row), int(row) + 1) for row in wanted]
        table = torch.from_numpy(np.concatenate(rows) * np.float32(self._scale))
        return table[where]


def text_config(values: Mapping[str, object]) -> JsonObject:
    """The text decoder's part of a parsed `config.json`."""
    inner = values.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(values)
    return {"model_type": f"{values.get('model_type')}_text", **inner}


def _fill(module: torch.nn.Module, prefix: str, read: RowReader, shapes: Shapes) -> None:
    """Load the weights of a module: `prefix` and its own names make the checkpoint's."""
    names = module.state_dict().keys()
    state = {name: towers.whole(prefix + name, read, shapes) for name in names}
    module.load_state_dict(state, strict=True, assign=True)


def _rounded(scale: float, dtype: str) -> float:
    """A constant scale as transformers has it when the model runs in the checkpoint's dtype."""
    return float(torch.tensor(scale).to(getattr(torch, dtype)).to(torch.float32))


def _make_model(text: JsonObject, dtype: str, read: RowReader, shapes: Shapes) -> Any:
    unified = text["model_type"] == "gemma4_unified_text"
    kind: Any = Gemma4UnifiedTextModel if unified else Gemma4TextModel
    config = kind.config_class(**text)
    with torch.device("meta"):
        options = {"attn_implementation": "eager", "dtype": torch.float32}
        model = kind._from_config(config, **options).eval()
    model.rotary_emb = type(model.rotary_emb)(config)
    _fill(model.norm, "norm.", read, shapes)
    for name in ("embed_tokens", "embed_tokens_per_layer"):
        table = getattr(model, name, None)
        if table is not None:
            scale = _rounded(table.scalar_embed_scale, dtype)
            setattr(model, name, _RowEmbedding(f"{name}.weight", read, scale))
    for name in ("per_layer_model_projection", "per_layer_projection_norm"):
        module = getattr(model, name, None)
        if module is not None:
            _fill(module, f"{name}.", read, shapes)
    return model


def _stream_layers(
    model: Any, read: RowReader, shapes: Shapes, rows: Sequence[int]
) -> list[Float32Array]:
    """Fill each layer before it runs, keep its result at `rows`, and drop its weights after it."""
    kept: list[Float32Array] = []

    def before(index: int) -> Callable[[torch.nn.Module, object], None]:
        def fill(layer: torch.nn.Module, _: object) -> None:
            _fill(layer, f"layers.{index}.", read, shapes)

        return fill

    def after(
        layer: torch.nn.Module, _: object, result: torch.Tensor | tuple[torch.Tensor, ...]
    ) -> None:
        hidden = result[0] if isinstance(result, tuple) else result
        kept.append(hidden[0, list(rows)].numpy().copy())
        layer.to_empty(device="meta")

    for index, layer in enumerate(model.layers):
        layer.register_forward_pre_hook(before(index))
        layer.register_forward_hook(after)
    return kept


def _store_last_owners(model: Any) -> None:
    """Let transformers hand out the keys and values that a drafter reads.

    Of models that share some it does; of others no layer is marked for it.
    """
    owners = model.config.num_hidden_layers - model.config.num_kv_shared_layers
    last = dict(zip(model.config.layer_types[:owners], model.layers[:owners], strict=True))
    for layer in last.values():
        layer.self_attn.store_full_length_kv = True


def _head(
    normed: torch.Tensor, vocab_size: int, cap: float | None, read: RowReader, shapes: Shapes
) -> Float32Array:
    """Logits of (positions, hidden_size) by the head, then ``cap * tanh(x / cap)``."""
    own = f"{HEAD}.weight"
    name = own if own in shapes else "embed_tokens.weight"
    logits = np.empty((normed.shape[0], vocab_size), np.float32)
    block = max(1, HEAD_BLOCK_BYTES // (4 * normed.shape[1]))
    for begin in range(0, vocab_size, block):
        end = min(begin + block, vocab_size)
        rows = torch.from_numpy(np.ascontiguousarray(read(name, begin, end)))
        part = normed @ rows.T
        logits[:, begin:end] = (part if cap is None else torch.tanh(part / cap) * cap).numpy()
    return logits


def _text_alone(prompt: Prompt) -> dict[str, object]:
    return {"input_ids": torch.tensor([list(prompt)])}


def _with_media(model: Any, prompt: Prompt, media: Sequence[Float32Array]) -> dict[str, object]:
    """Inputs of the text decoder as the whole model makes them: its `forward` does the same.

    The masks are those of `generate` with a cache of fixed size: docs/numerics.md.
    """
    ids, types = torch.tensor([list(prompt)]), torch.zeros((1, len(prompt)), dtype=torch.int64)
    for run in prompt.runs:
        where = slice(run.start, run.start + run.count)
        ids[0, where] = model.config.pad_token_id
        types[0, where] = _PICTURE_TYPE if isinstance(run.medium, Picture) else _SOUND_TYPE
    rows = model.embed_tokens(ids)
    for run, values in zip(prompt.runs, media, strict=True):
        part = values[run.first : run.first + run.count]
        rows[0, run.start : run.start + run.count] = torch.from_numpy(part)
    unified = isinstance(model, Gemma4UnifiedTextModel)
    whole: Any = (
        Gemma4UnifiedForConditionalGeneration if unified else Gemma4ForConditionalGeneration
    )
    places = torch.arange(len(prompt))[None]
    masks = whole.create_masks_for_generate(
        *(model.config, rows, None, None, places), mm_token_type_ids=types
    )
    given: dict[str, object] = {"inputs_embeds": rows, "attention_mask": masks}
    if getattr(model, "embed_tokens_per_layer", None) is not None:
        given["per_layer_inputs"] = model.get_per_layer_inputs(ids)
    return given


def run_transformers(
    text: JsonObject,
    dtype: str,
    read: RowReader,
    shapes: Shapes,
    ids: Sequence[int],
    rows: Sequence[int],
    media: Sequence[Float32Array] = (),
) -> ReferenceRun:
    """Run one sequence through transformers' text decoder in float32.

    Parameters
    ----------
    text : the text decoder's `config.json`, see :func:`text_config`
    dtype : the checkpoint's; transformers rounds its constant scales to it
    read : reads rows of a checkpoint tensor, by its name without prefix
    shapes : of those tensors
    ids : token ids from position 0 on; a `Prompt` where there are media among them
    rows : positions whose logits and residual streams are kept
    media : the rows of each medium of the prompt
    """
    with torch.no_grad():
        model = _make_model(text, dtype, read, shapes)
        hidden = _stream_layers(model, read, shapes, rows)
        # Else transformers cuts positions off before layers that share keys, and with them
        # per-layer embeddings that a model may not have.
        shares = model.config.num_kv_shared_layers > 0
        prompt = Prompt.of(ids)
        given = _with_media(model, prompt, media) if prompt.runs else _text_alone(prompt)
        _store_last_owners(model)
        output = model(
            **given, use_cache=False, output_hidden_states=shares, return_shared_kv_states=True
        )
        normed = output.last_hidden_state[0, list(rows)]
        stored = output.shared_kv_states
        cap = model.config.final_logit_softcapping
        logits = _head(normed, model.config.vocab_size, cap, read, shapes)
    keys_values = {
        kind: tuple(one[0].transpose(0, 1).contiguous().numpy() for one in stored[kind.value])
        for kind in AttentionKind
        if kind.value in model.config.layer_types
    }
    return ReferenceRun(logits, np.stack(hidden), normed.numpy(), keys_values)
