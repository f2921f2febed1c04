"""A drafter for `tiny` in torch, all positions of a batch at a time.

The formulas are those of `gemma4_compile.model_spec.drafter.reference`, which a test holds it to.
Axes: B dialogue, T position, H query head, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import DynamicCache

from gemma4_compile.tiny.architecture import tensor_shapes

HIDDEN, INTERMEDIATE = 96, 192
_LAYERS = ("sliding_attention",) * 3 + ("full_attention",)
_NOT_A_DRAFTERS = ("hidden_size_per_layer_input", "vocab_size_per_layer_input")


def drafter_config(target: dict[str, Any]) -> dict[str, Any]:
    """`config.json` of the drafter of a target with this parsed `config.json`."""
    text = {
        **target["text_config"],
        **dict.fromkeys(_NOT_A_DRAFTERS, 0),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": len(_LAYERS),
        "num_kv_shared_layers": len(_LAYERS),
        "layer_types": list(_LAYERS),
        "use_double_wide_mlp": False,
        "final_logit_softcapping": None,
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": target["text_config"]["hidden_size"],
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def drafter_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a drafter's tensors by their names in a checkpoint."""
    text, backbone = config["text_config"], config["backbone_hidden_size"]
    shapes = {f"model.{name}": shape for name, shape in tensor_shapes(text).items()}
    return {
        **shapes,
        "pre_projection.weight": (text["hidden_size"], 2 * backbone),
        "post_projection.weight": (backbone, text["hidden_size"]),
    }


@dataclass(frozen=True)
class Target:
    """What a drafter reads of its target's run on a batch.

    Attributes
    ----------
    embedded : (B, T, backbone) scaled embeddings of the tokens
    states : (B, T, backbone) after the final norm
    keys_values : K and V (B, 1, T, D) by kind of layer
    best : (B, T) the target's most probable token after each
    """

    embedded: torch.Tensor
    states: torch.Tensor
    keys_values: dict[str, tuple[torch.Tensor, torch.Tensor]]
    best: torch.Tensor


@torch.no_grad()
def read_target(model: Any, ids: torch.Tensor) -> Target:
    """Run the target (transformers' decoder) on ids (B, T)."""
    cache: Any = DynamicCache()  # without a config: no layer forgets
    text = model.model
    states = text(ids, cache=cache, use_cache=True).last_hidden_state
    kinds = text.config.layer_types
    owners = len(kinds) - text.config.num_kv_shared_layers
    last = {kind: index for index, kind in enumerate(kinds[:owners])}
    return Target(
        text.embed_tokens(ids),
        states,
        {kind: (cache.layers[i].keys, cache.layers[i].values) for kind, i in last.items()},
        model.lm_head(states).argmax(-1),
    )


class DrafterModel(nn.Module):
    """A drafter with a dense head; its parameters by their names in a checkpoint."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Make a float32 drafter of random weights that train well."""
        super().__init__()
        self.config = config
        self.text: dict[str, Any] = config["text_config"]
        self.tensors = nn.ParameterDict()
        for name, shape in drafter_shapes(config).items():
            value = torch.ones(shape)
            if len(shape) == 2:
                value = torch.randn(shape) * shape[1] ** -0.5
            self.tensors[name.replace(".", "/")] = nn.Parameter(value)

    def _weight(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self.tensors[f"{name}.weight".replace(".", "/")]
        return found

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self._weight(name), self.text["rms_norm_eps"])

    def _rotated(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        """Queries (B, H, T, D), each turned to its own position."""
        rope, dim = self.text["rope_parameters"][kind], x.shape[-1]
        turned = int(rope.get("partial_rotary_factor", 1.0) * dim) // 2
        exponent = torch.arange(0, 2 * turned, 2, device=x.device) / dim
        frequencies = torch.zeros(dim // 2, device=x.device)
        frequencies[:turned] = rope["rope_theta"] ** -exponent
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        low, high = x.chunk(2, -1)
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    def _attention(self, x: torch.Tensor, prefix: str, kind: str, target: Target) -> torch.Tensor:
        key, value = target.keys_values[kind]
        heads, dim = self.text["num_attention_heads"], key.shape[-1]
        query = functional.linear(x, self._weight(f"{prefix}.self_attn.q_proj"))
        query = self._norm(query.view(*x.shape[:2], heads, dim), f"{prefix}.self_attn.q_norm")
        query = self._rotated(query.transpose(1, 2), kind)
        places = torch.arange(x.shape[1], device=x.device)
        distance = places[:, None] - places[None, :]
        seen = distance > 0
        if kind == "sliding_attention":
            seen = seen & (distance <= self.text["sliding_window"])
        seen = seen | ((distance == 0) & (places == 0))  # the first place has nothing before it
        mixed = functional.scaled_dot_product_attention(
            query, key.expand(-1, heads, -1, -1), value.expand(-1, heads, -1, -1), seen, scale=1.0
        )
        return functional.linear(
            mixed.transpose(1, 2).flatten(2), self._weight(f"{prefix}.self_attn.o_proj")
        )

    def draft(
        self, embedded: torch.Tensor, states: torch.Tensor, target: Target
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft after each place from the rows before it.

        Parameters
        ----------
        embedded : (B, T, backbone) of the token that each place's draft comes after
        states : (B, T, backbone) the target's at the place before, or the draft's before

        Returns
        -------
        Logits (B, T, vocab_size), and states (B, T, backbone) for the next draft.
        """
        x = functional.linear(torch.cat((embedded, states), -1), self._weight("pre_projection"))
        for index, kind in enumerate(self.text["layer_types"]):
            prefix = f"model.layers.{index}"
            mixed = self._attention(
                self._norm(x, f"{prefix}.input_layernorm"), prefix, kind, target
            )
            x = x + self._norm(mixed, f"{prefix}.post_attention_layernorm")
            normed = self._norm(x, f"{prefix}.pre_feedforward_layernorm")
            gate = functional.linear(normed, self._weight(f"{prefix}.mlp.gate_proj"))
            up = functional.linear(normed, self._weight(f"{prefix}.mlp.up_proj"))
            wide = functional.gelu(gate, approximate="tanh") * up
            fed = functional.linear(wide, self._weight(f"{prefix}.mlp.down_proj"))
            x = x + self._norm(fed, f"{prefix}.post_feedforward_layernorm")
            x = x * self.tensors[f"{prefix}.layer_scalar".replace(".", "/")]
        normed = self._norm(x, "model.norm")
        logits = functional.linear(normed, self._weight("model.embed_tokens"))
        return logits, functional.linear(normed, self._weight("post_projection"))

    def forward(self, ids: torch.Tensor, target: Target, count: int) -> list[torch.Tensor]:
        """Logits (B, T, vocab_size) of `count` drafts in a row that begin at each place.

        Draft j comes after the token at place + j: the right one, since a round ends with the first
        wrong draft. Places near the end wrap around; their drafts mean nothing.
        """
        states, found = target.states.roll(1, 1), []
        for j in range(count):
            logits, states = self.draft(target.embedded.roll(-j, 1), states, target)
            found.append(logits)
        return found
