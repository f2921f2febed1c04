"""`tiny` with its towers, for the training: transformers' modules, and a fast way through them.

Pictures of a batch share one grid, so the vision tower runs here without padding and masks, which
is a few times as fast as transformers' own way; a test holds the two to each other.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional
from transformers import Gemma4Config, Gemma4ForConditionalGeneration

from gemma4_compile.tiny.architecture import tensor_shapes
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tools.training.tiny import picture_drawing, pictures, sound_synthesis, sounds
from tools.training.tiny.media_batches import MediaBatch, Pictures, Sounds

_TEXT_PREFIX = "model.language_model."
_POOL = 3
_SOFTEST = 0.5  # first weight of norms that scale scores or add to the residual stream


@dataclass(frozen=True)
class Read:
    """What the model makes of a batch.

    Attributes
    ----------
    logits : (places, vocab_size) of the tokens to predict
    picture_rows : (pictures, rows, hidden)
    sound_rows : (sounds, most rows, hidden)
    """

    logits: torch.Tensor
    picture_rows: torch.Tensor | None
    sound_rows: torch.Tensor | None


class MediaModel(nn.Module):
    """The model, and heads that tell what its rows show; the heads are for the training alone."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Make a fresh float32 model, every stored tensor a trainable parameter."""
        super().__init__()
        parsed = Gemma4Config(**config)
        attention = {"text_config": "sdpa", "vision_config": "sdpa", "audio_config": "eager"}
        create: Any = Gemma4ForConditionalGeneration._from_config
        self.network = create(parsed, attn_implementation=attention, dtype=torch.float32)
        self.config = config
        text = self.network.model.language_model
        for layer in text.layers:
            scalar = layer.layer_scalar.detach().clone()
            del layer.layer_scalar
            layer.layer_scalar = nn.Parameter(scalar)
        for table in (text.embed_tokens, text.embed_tokens_per_layer):
            table.embed_scale.copy_(table.embed_scale.bfloat16().float())
        _start_towers(self.network.model)
        _choose_masks(self.network.model.audio_tower)
        hidden = config["text_config"]["hidden_size"]
        self.block_head = nn.Linear(hidden, pictures.CLASSES)
        self.slot_head = nn.Linear(hidden, pictures.CLASSES)
        self.place_head = nn.Linear(hidden, 9)
        self.state_head = nn.Linear(hidden, len(sounds.STATES))
        self.content_head = nn.Linear(hidden, len(sounds.CONTENTS))

    @property
    def device(self) -> str:
        """Where it is."""
        return str(self.block_head.weight.device)

    def _fast(self) -> Any:
        """Half precision for matrix products on a GPU."""
        if self.block_head.weight.is_cuda:
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def picture_rows(self, values: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Rows (pictures, rows, hidden) of patches (pictures, count, 768) of a grid of blocks."""
        dtype = torch.bfloat16 if values.is_cuda else torch.float32
        model, where = self.network.model, picture_drawing.positions(grid, self.device)
        tower, size = model.vision_tower, self.config["vision_config"]
        embedder = tower.patch_embedder
        table = embedder.position_embedding_table
        weight = embedder.input_proj.weight.to(dtype)
        hidden = functional.linear((2 * (values - 0.5)).to(dtype), weight)
        hidden = hidden + (table[0, where[:, 0]] + table[1, where[:, 1]]).to(dtype)
        quarter = size["head_dim"] // 4
        theta = size["rope_parameters"]["rope_theta"]
        frequencies = theta ** -(torch.arange(quarter, device=self.device) / quarter)
        angles = where[:, None, :, None].float() * frequencies  # (count, 1, 2, quarter)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        for layer in tower.encoder.layers:
            hidden = _vision_layer(layer, hidden, cos, sin)
        across, down = grid
        blocks = hidden.reshape(len(hidden), down, _POOL, across, _POOL, -1).float()
        pooled = blocks.mean((2, 4)).flatten(1, 2) * math.sqrt(size["hidden_size"])
        normed = functional.rms_norm(pooled, pooled.shape[-1:], eps=size["rms_norm_eps"])
        weight = model.embed_vision.embedding_projection.weight.to(dtype)
        return functional.linear(normed.to(dtype), weight).float()

    def sound_rows(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Rows (sounds, most rows, hidden) of features (sounds, frames, 128)."""
        model = self.network.model
        with self._fast():
            found = model.audio_tower(features, mask, return_dict=True).last_hidden_state
            rows: torch.Tensor = model.embed_audio(found.float())
        return rows.float()

    def _masks(self, length: int) -> dict[str, torch.Tensor | None]:
        """The masks that transformers would make, without waiting for the device."""
        places = torch.arange(length, device=self.device)
        distance = places[:, None] - places[None, :]
        window = (distance >= 0) & (distance < self.config["text_config"]["sliding_window"])
        return {"full_attention": None, "sliding_attention": window[None, None]}

    def forward(self, batch: Inputs) -> Read:
        """Logits of the tokens to predict, and the rows of the media."""
        text = self.network.model.language_model
        images, heard = None, None
        is_image = batch.ids == self.config["image_token_id"]
        is_audio = batch.ids == self.config["audio_token_id"]
        clean = batch.ids.masked_fill(is_image | is_audio, 0)
        embedded = text.embed_tokens(clean)
        if batch.patches is not None:
            images = self.picture_rows(batch.patches, batch.grid)
            embedded = embedded.masked_scatter(is_image[..., None], images)
        if batch.features is not None and batch.mask is not None:
            heard = self.sound_rows(batch.features, batch.mask)
            rows = heard.flatten(0, 1)[batch.kept]
            embedded = embedded.masked_scatter(is_audio[..., None], rows)
        with self._fast():
            found = text(
                inputs_embeds=embedded,
                per_layer_inputs=text.get_per_layer_inputs(clean, None),
                attention_mask=self._masks(batch.ids.shape[1]),
                use_cache=False,
            )
        # Row t predicts token t + 1; `places` are flat indices of the tokens to predict.
        last = found.last_hidden_state.flatten(0, 1)[batch.places - 1].float()
        cap = self.config["text_config"]["final_logit_softcapping"]
        logits = functional.linear(last, text.embed_tokens.weight)
        return Read(cap * torch.tanh(logits / cap), images, heard)


@dataclass(frozen=True)
class Inputs:
    """A batch on the device.

    Attributes
    ----------
    ids : (dialogues, tokens)
    places : flat indices of the tokens to predict
    patches : (pictures, count, 768) of 0 to 1
    features, mask : of the sounds, and which frames they fill
    kept : flat indices of the rows that are not padding among those of all sounds
    ends : (sounds,) flat index of the last row of each
    """

    ids: torch.Tensor
    places: torch.Tensor
    patches: torch.Tensor | None = None
    grid: tuple[int, int] = (0, 0)
    features: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    kept: torch.Tensor | None = None
    ends: torch.Tensor | None = None

    @classmethod
    def of(cls, batch: MediaBatch, device: str) -> Inputs:
        """Draw the pictures and make the sounds of a batch."""
        ids = torch.from_numpy(batch.ids).to(device)
        places = torch.from_numpy(batch.wanted.reshape(-1).nonzero()[0]).to(device)
        media: dict[str, Any] = {}
        if batch.pictures is not None:
            media |= _drawn(batch.pictures, batch.seed, device)
        if batch.sounds is not None:
            media |= _made(batch.sounds, batch.seed, device)
        return cls(ids, places, **media)


def _drawn(some: Pictures, seed: int, device: str) -> dict[str, Any]:
    pixels = picture_drawing.draw(some, seed, device)
    return {"patches": picture_drawing.patches(pixels), "grid": some.grid}


def _made(some: Sounds, seed: int, device: str) -> dict[str, Any]:
    samples = sound_synthesis.samples_of(some, seed, device)
    ends = torch.from_numpy(some.samples).to(device)
    features, mask = sound_synthesis.features(samples, ends)
    width = -(-features.shape[1] // 4)
    rows = np.array([sounds.rows_of(int(count)) for count in some.samples])
    begins = width * np.arange(len(rows))
    kept = np.concatenate([begin + np.arange(n) for begin, n in zip(begins, rows, strict=True)])
    places = {"kept": kept, "ends": begins + rows - 1}
    return {
        "features": features,
        "mask": mask,
        **{name: torch.from_numpy(value).to(device) for name, value in places.items()},
    }


def _norm(x: torch.Tensor, norm: Any) -> torch.Tensor:
    weight = norm.weight.to(x.dtype) if norm.with_scale else None
    return functional.rms_norm(x, x.shape[-1:], weight, norm.eps)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads (pictures, count, heads, head_dim): one half turned by x, the other by y."""
    halves = x.reshape(*x.shape[:-1], 2, 2, -1)
    first, second = halves.unbind(-2)
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -2)
    return turned.flatten(-3).transpose(1, 2)


def _vision_layer(
    layer: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    attention, mlp = layer.self_attn, layer.mlp

    def linear(x: torch.Tensor, *modules: Any) -> torch.Tensor:
        weights = [module.linear.weight.to(x.dtype) for module in modules]
        return functional.linear(x, weights[0] if len(weights) == 1 else torch.cat(weights))

    normed = _norm(x, layer.input_layernorm)
    joined = linear(normed, attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = joined.reshape(*x.shape[:2], 3, -1, attention.head_dim).unbind(2)
    q = _rotated(_norm(q, attention.q_norm), cos, sin)
    k = _rotated(_norm(k, attention.k_norm), cos, sin)
    v = _norm(v, attention.v_norm).transpose(1, 2)
    mixed = functional.scaled_dot_product_attention(q, k, v, scale=1.0)
    mixed = linear(mixed.transpose(1, 2).flatten(2), attention.o_proj)
    x = x + _norm(mixed, layer.post_attention_layernorm)
    normed = _norm(x, layer.pre_feedforward_layernorm)
    gate, up = linear(normed, mlp.gate_proj, mlp.up_proj).chunk(2, -1)
    wide = functional.gelu(gate, approximate="tanh") * up
    return x + _norm(linear(wide, mlp.down_proj), layer.post_feedforward_layernorm)


@torch.no_grad()
def _start_towers(model: Any) -> None:
    """First values that train well: flat scores, small steps, no positions yet."""
    towers = (model.vision_tower, model.audio_tower)
    for name, parameter in (pair for tower in towers for pair in tower.named_parameters()):
        if name.endswith("position_embedding_table"):
            parameter.zero_()
        elif name.endswith(("q_norm.weight", "k_norm.weight")) or "post_" in name:
            parameter.fill_(_SOFTEST)
        elif parameter.ndim >= 2:
            parameter.normal_(0.0, parameter[0].numel() ** -0.5)
    for embedder in (model.embed_vision, model.embed_audio):
        weight = embedder.embedding_projection.weight
        weight.normal_(0.0, weight.shape[1] ** -0.5)


@torch.no_grad()
def _choose_masks(tower: Any) -> None:
    """Make the audio tower hear the past alone, which is what released models do.

    Its attention takes masks of one kind, that of `sdpa` up to transformers 5.17 and that of
    `eager` in 5.23, and reads the other kind the wrong way around.
    """
    features = torch.randn(2, 64, 128, generator=torch.Generator().manual_seed(0))
    features[1, :32] = features[0, :32]
    everywhere = torch.ones(2, 64, dtype=torch.bool)
    for kind in ("eager", "sdpa"):
        tower.config._attn_implementation = kind
        rows = tower(features, everywhere, return_dict=True).last_hidden_state
        if torch.allclose(rows[0, :7], rows[1, :7], atol=1e-4) and not rows[0].equal(rows[1]):
            return
    raise SystemExit("this version of transformers masks the audio tower in no known way")


def load_stored(model: MediaModel, path: Path) -> None:
    """Take the weights of a file; of text alone, the towers stay as they are."""
    state = {name: tensor.float() for name, tensor in load_file(path).items()}
    state["lm_head.weight"] = state[_TEXT_PREFIX + "embed_tokens.weight"]
    missing, unexpected = model.network.load_state_dict(state, strict=False)
    wrong = [name for name in missing if name.startswith(_TEXT_PREFIX)]
    if wrong or unexpected:
        raise SystemExit(f"{path}: missing {wrong}, unexpected {unexpected}")


def save(model: MediaModel, path: Path) -> None:
    """Write the weights as bfloat16 under the hub's names: text in its order, then the towers."""
    state = model.network.state_dict()
    of_text = [_TEXT_PREFIX + name for name in tensor_shapes(model.config["text_config"])]
    others = sorted(name for name in state if not name.startswith((_TEXT_PREFIX, "lm_head")))
    tensors = {name: state[name].detach().float().cpu().numpy() for name in (*of_text, *others)}
    partial = path.with_suffix(".partial")
    write_safetensors(partial, tensors, "bfloat16")
    partial.replace(path)
