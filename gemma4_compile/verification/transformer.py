"""transformers in float32, one layer in memory at a time: the truth that packages are held against.

The model is made without weights. A layer's weights are read just before it runs and dropped after
it; of the embedding tables only the rows of the prompt's tokens are read, and the head multiplies
block by block. Several sequences, on several sets of weights, go through the layers together: a
layer that two sets share is read once. This module needs torch and transformers
(`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import transformers

from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.types import JsonObject
from gemma4_compile.verification import static_rounding, streams, towers
from gemma4_compile.verification.attention_blocks import BLOCKS, Untyped
from gemma4_compile.verification.heads import Weights, head, parsed, text_model
from gemma4_compile.verification.text_inputs import text_alone, with_media

Float32Array = npt.NDArray[np.float32]
Shapes = Mapping[str, tuple[int, ...]]

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


@dataclass(frozen=True)
class Tokens:
    """A sequence that is run.

    Attributes
    ----------
    ids : token ids from position 0 on; a `Prompt` where there are media among them
    rows : positions whose residual streams are kept
    media : the rows of each medium of the prompt
    """

    ids: Prompt | Sequence[int]
    rows: Sequence[int] = ()
    media: Sequence[Float32Array] = ()


@dataclass(frozen=True)
class Streamed:
    """A sequence after the final norm: fields as those of `ReferenceRun`, `normed` of all rows."""

    hidden: Float32Array
    normed: torch.Tensor
    keys_values: Mapping[AttentionKind, tuple[Float32Array, Float32Array]]


class _RowEmbedding(torch.nn.Module):
    """An embedding table that stays on disk."""

    def __init__(self, name: str, read: RowReader, scale: float) -> None:
        super().__init__()
        self._name, self._read, self.scale = name, read, scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(1, S) token ids -> (1, S, cols), times the table's scale."""
        wanted, where = torch.unique(ids, return_inverse=True)
        rows = [self._read(self._name, int(row), int(row) + 1) for row in wanted]
        table = torch.from_numpy(np.concatenate(rows) * np.float32(self.scale))
        return table[where]


def has_cuda() -> bool:
    """Return whether torch finds a GPU of NVIDIA."""
    return bool(torch.cuda.is_available())


def text_config(values: Mapping[str, object]) -> JsonObject:
    """The text decoder's part of a parsed `config.json`."""
    inner = values.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(values)
    return {"model_type": f"{values.get('model_type')}_text", **inner}


def fill(module: torch.nn.Module, prefix: str, weights: Weights) -> None:
    """Load the weights of a module: `prefix` and its own names make the checkpoint's."""
    names = module.state_dict().keys()
    state = {name: towers.whole(prefix + name, weights.read, weights.shapes) for name in names}
    module.load_state_dict(state, strict=True, assign=True)
    streams.fill_scales(module)


def rounded_scale(scale: float, dtype: str) -> float:
    """A constant scale as transformers has it when the model runs in the checkpoint's dtype."""
    return float(torch.tensor(scale).to(getattr(torch, dtype)).to(torch.float32))


def make_model(text: JsonObject) -> Untyped:
    """The text decoder without weights."""
    kind, config = text_model(text), parsed(text)
    with torch.device("meta"):
        # Plain experts: others are for dtypes of which float32 is none on every device.
        options = {"attn_implementation": BLOCKS, "experts_implementation": "eager"}
        model = kind._from_config(config, dtype=torch.float32, **options).eval()
    model.rotary_emb = type(model.rotary_emb)(config)
    _store_last_owners(model)
    return model


def fill_ends(model: Untyped, dtype: str, weights: Weights) -> None:
    """Load what is before the layers and after them."""
    fill(model.norm, "norm.", weights)
    for name in ("embed_tokens", "embed_tokens_per_layer"):
        table = getattr(model, name, None)
        if table is not None:
            scale = table.scale if isinstance(table, _RowEmbedding) else table.scalar_embed_scale
            rows = _RowEmbedding(f"{name}.weight", weights.read, rounded_scale(scale, dtype))
            setattr(model, name, rows)
    streams.round_scales(model, dtype)
    for name in ("per_layer_model_projection", "per_layer_projection_norm", *streams.ENDS):
        module = getattr(model, name, None)
        if module is not None:
            fill(module, f"{name}.", weights)


_Call = tuple[tuple[torch.Tensor | None, ...], dict[str, Untyped]]


class _Recorder(torch.nn.Module):
    """Stands for every layer: notes what transformers calls it with, and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.hidden: torch.Tensor | None = None

    def forward(
        self, hidden: torch.Tensor, *inputs: torch.Tensor | None, **given: Untyped
    ) -> torch.Tensor:
        self.calls.append((inputs, given))
        self.hidden = hidden
        return hidden


@dataclass
class _Lane:
    """A sequence on one set of weights, between two layers.

    Attributes
    ----------
    hidden : (1, T, hidden_size)
    calls : what the layers are called with besides: inputs by layer, masks, angles
    rows : positions that are kept
    """

    hidden: torch.Tensor
    calls: list[_Call]
    rows: list[int]
    kept: list[Float32Array] = field(default_factory=list)

    @classmethod
    def begin(cls, model: Untyped, tokens: Tokens, like: _Lane | None) -> _Lane:
        """The embedded sequence; `like` is of the same one, and has the masks."""
        recorder = _Recorder()
        model.layers = torch.nn.ModuleList([recorder] * model.config.num_hidden_layers)
        prompt = Prompt.of(tokens.ids)
        given = with_media(model, prompt, tokens.media) if prompt.runs else text_alone(prompt)
        # Else transformers cuts positions off before layers that share keys, and with them
        # per-layer embeddings that a model may not have.
        if not streams.has_streams(model):
            shares = model.config.num_kv_shared_layers > 0
            given.update(output_hidden_states=shares, return_shared_kv_states=True)
        model(**given, use_cache=False)
        assert recorder.hidden is not None, "a model has layers"
        calls = recorder.calls
        if like is not None:
            masks = [each["attention_mask"] for _, each in like.calls]
            calls = [
                (inputs, {**each, "attention_mask": mask})
                for (inputs, each), mask in zip(calls, masks, strict=True)
            ]
        return cls(recorder.hidden, calls, list(tokens.rows))

    def run(self, layer: torch.nn.Module, index: int, device: str) -> None:
        """Go through a layer, which is on the device; what waits is in the machine's memory."""
        inputs, given = self.calls[index]
        there = {name: _moved(value, device) for name, value in given.items()}
        result = layer(_moved(self.hidden, device), *_moved(inputs, device), **there)
        hidden = result[0] if isinstance(result, tuple) else result
        self.hidden = hidden.cpu()
        if self.rows:
            kept = streams.active(layer, self.hidden)
            self.kept.append(kept[0, self.rows].numpy().copy())

    def end(self, model: Untyped) -> Streamed:
        """What is left after the final norm."""
        stored = self.calls[-1][1]["shared_kv_states"]
        keys_values = {
            kind: tuple(one[0].transpose(0, 1).contiguous().cpu().numpy() for one in both)
            for kind in AttentionKind
            if kind.value in model.config.layer_types
            for both in (stored[kind.value],)
        }
        hidden = np.stack(self.kept) if self.kept else np.empty((0, 0, 0), np.float32)
        return Streamed(hidden, streams.normed(model, self.hidden)[0], keys_values)


def _moved(value: Untyped, device: str) -> Untyped:
    """Tensors on the device; keys and values that layers share stay where they are."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return tuple(_moved(each, device) for each in value) if isinstance(value, tuple) else value


def _exchange(
    layer: torch.nn.Module, index: int, weights: Weights, held: dict[str, Hashable], device: str
) -> None:
    """Load those of a layer's weights that are not `held` already."""
    for name in layer.state_dict():
        whole = f"layers.{index}.{name}"
        version = weights.version_of(whole)
        if name not in held or held[name] != version:
            value = towers.whole(whole, weights.read, weights.shapes).to(device)
            layer.load_state_dict({name: value}, strict=False, assign=True)
            held[name] = version


def stream(
    text: JsonObject,
    dtype: str,
    weights: Sequence[Weights],
    sequences: Sequence[Tokens],
    *,
    device: str = "cpu",
    advance: Callable[[int], None] = lambda nbytes: None,
) -> list[list[Streamed]]:
    """Run sequences through transformers' text decoder in float32, on each set of weights.

    In memory are one layer, and of each sequence on each set the residual stream, its per-layer
    inputs, and keys and values that layers share.

    Parameters
    ----------
    text : the text decoder's `config.json`, see :func:`text_config`
    dtype : the checkpoint's; transformers rounds its constant scales to it
    device : of torch; layers are on it one after the other
    advance : called with the bytes of each layer's weights of each set when it has run

    Returns
    -------
    list
        By set, then by sequence.
    """
    with torch.no_grad():
        model = make_model(text)
        layers = list(model.layers)
        lanes: list[list[_Lane]] = []
        for one in weights:
            fill_ends(model, dtype, one)
            like = lanes[0] if lanes else [None] * len(sequences)
            pairs = zip(sequences, like, strict=True)
            lanes.append([_Lane.begin(model, tokens, first) for tokens, first in pairs])
        for index, layer in enumerate(layers):
            held: dict[str, Hashable] = {}
            streams.fill_scales(layer)
            static_rounding.round_layer(layer, index, weights[0].read, weights[0].shapes)
            nbytes = sum(4 * value.numel() for value in layer.state_dict().values())
            for one, own in zip(weights, lanes, strict=True):
                _exchange(layer, index, one, held, device)
                for lane in own:
                    lane.run(layer, index, device)
                advance(nbytes)
            layer.to_empty(device="meta")
        results = []
        for one, own in zip(weights, lanes, strict=True):
            fill(model.norm, "norm.", one)
            results.append([lane.end(model) for lane in own])
    return results


def _store_last_owners(model: Untyped) -> None:
    """Let transformers hand out the keys and values that a drafter reads.

    Of models that share some it does; of others no layer is marked for it.
    """
    owners = model.config.num_hidden_layers - model.config.num_kv_shared_layers
    last = dict(zip(model.config.layer_types[:owners], model.layers[:owners], strict=True))
    for layer in last.values():
        layer.self_attn.store_full_length_kv = True


def run_transformers(
    text: JsonObject,
    dtype: str,
    read: RowReader,
    shapes: Shapes,
    ids: Prompt | Sequence[int],
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
    weights = Weights(read, shapes)
    (found,) = stream(text, dtype, [weights], [Tokens(ids, rows, media)])
    return with_logits(found, [rows], text, weights)[0]


def with_logits(
    runs: Sequence[Streamed], rows: Sequence[Sequence[int]], text: JsonObject, weights: Weights
) -> tuple[ReferenceRun, list[Float32Array]]:
    """The first run with its logits at some rows, and those of the others at theirs."""
    normed = [run.normed[list(places)] for run, places in zip(runs, rows, strict=True)]
    logits = head(torch.cat(normed), text, weights)
    ends = np.cumsum([len(each) for each in normed])
    own, *others = np.split(logits, ends[:-1])
    first = runs[0]
    return ReferenceRun(own, first.hidden, normed[0].numpy(), first.keys_values), others
