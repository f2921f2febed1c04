"""transformers' drafters in float32, on weights given as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.models.gemma4_assistant import (
    configuration_gemma4_assistant,
    modeling_gemma4_assistant,
)
from transformers.models.gemma4_unified_assistant import (
    configuration_gemma4_unified_assistant,
    modeling_gemma4_unified_assistant,
)

from gemma4_compile.model_spec.config.attention import AttentionKind
from gemma4_compile.tiny.architecture import HEAD
from tests.drafters import Drafter
from tests.hf import Float32Array, Ids

KeysValues = Mapping[AttentionKind, tuple[Float32Array, Float32Array]]


_NO_TOKEN = 1_000_000  # of no vocabulary here: nothing ends a reply


@dataclass(frozen=True)
class Assistant:
    """A drafter of transformers."""

    model: Any
    window: int

    def draft(
        self, embedding: Float32Array, hidden: Float32Array, keys_values: KeysValues
    ) -> tuple[Float32Array, Float32Array]:
        """Logits (vocab_size,) and the next hidden state, from rows before the position only.

        The rows are cut to what a sliding layer sees: transformers' own mask keeps one more.
        """
        shared = {}
        for kind, (key, value) in keys_values.items():
            rows = slice(-self.window, None) if kind is AttentionKind.SLIDING else slice(None)
            shared[kind.value] = tuple(
                torch.from_numpy(np.ascontiguousarray(one[rows])).transpose(0, 1)[None]
                for one in (key, value)
            )
        position = len(keys_values[AttentionKind.FULL][0])
        inputs = torch.from_numpy(np.concatenate([embedding, hidden])[None, None])
        with torch.no_grad():
            result = self.model(
                inputs_embeds=inputs,
                position_ids=torch.tensor([[position]]),
                shared_kv_states=shared,
            )
        return result.logits[0, 0].numpy(), result.last_hidden_state[0, 0].numpy()


def load(drafter: Drafter) -> Assistant:
    """Build the drafter on its weights."""
    unified = drafter.values["model_type"] == "gemma4_unified_assistant"
    configs = configuration_gemma4_unified_assistant if unified else configuration_gemma4_assistant
    models = modeling_gemma4_unified_assistant if unified else modeling_gemma4_assistant
    name = "Gemma4UnifiedAssistant" if unified else "Gemma4Assistant"
    values = {k: v for k, v in drafter.values.items() if k not in ("model_type", "architectures")}
    config = getattr(configs, f"{name}Config")(**values)
    model = (
        getattr(models, f"{name}ForCausalLM")
        ._from_config(config, attn_implementation="eager", dtype=torch.float32)
        .eval()
    )
    state = {n: torch.from_numpy(np.array(v)) for n, v in drafter.weights.items()}
    state.setdefault(HEAD, state["model.embed_tokens.weight"])
    model.load_state_dict(state, strict=True)
    return Assistant(model, drafter.config.sliding_window)


def target_states(model: Any, ids: Ids) -> tuple[Float32Array, dict[int, Any]]:
    """Normed states (len(ids), hidden_size) of a target; K and V (T, heads, D) by its layers."""
    cache: Any = DynamicCache()  # without a config: no layer forgets
    result: Any
    with torch.no_grad():
        result = model.model(torch.tensor([list(ids)]), cache=cache, use_cache=True)
    stored = {
        index: tuple(one[0].transpose(0, 1).numpy() for one in (layer.keys, layer.values))
        for index, layer in enumerate(cache.layers)
        if layer.keys is not None
    }
    return result.last_hidden_state[0].numpy(), stored


def generated(
    model: Any, ids: Sequence[int], count: int, assistant: Assistant | None = None
) -> list[int]:
    """The most probable tokens after `ids`; with a drafter, four drafts at a time."""
    more = {}
    if assistant is not None:
        options = assistant.model.generation_config
        options.num_assistant_tokens = 4
        options.num_assistant_tokens_schedule = "constant"
        options.assistant_confidence_threshold = 0.0
        more = {"assistant_model": assistant.model}
    result = model.generate(
        torch.tensor([list(ids)]),
        attention_mask=torch.ones(1, len(ids)),  # else tokens with the pad's id are left out
        do_sample=False,
        max_new_tokens=count,
        eos_token_id=_NO_TOKEN,
        pad_token_id=0,
        **more,
    )
    found: list[int] = result[0, len(ids) :].tolist()
    return found
