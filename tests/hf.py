"""transformers as the numerical truth: Gemma 4 in float32 on weights given as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    Gemma4UnifiedForCausalLM,
    Gemma4UnifiedTextConfig,
)

from gemma4_compile import abi
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.package.artifacts import TensorCache, read_artifact
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.tiny import checkpoint
from gemma4_compile.tiny.architecture import HEAD
from gemma4_compile.verification.stored_weights import StoredWeights
from tests.models import tensor_name

Float32Array = npt.NDArray[np.float32]
Ids = Sequence[int] | npt.NDArray[np.int64]

_CLASSES: Mapping[str, tuple[Any, Any]] = {
    "gemma4_text": (Gemma4ForCausalLM, Gemma4TextConfig),
    "gemma4_unified_text": (Gemma4UnifiedForCausalLM, Gemma4UnifiedTextConfig),
    "gemma3n_text": (Gemma3nForCausalLM, Gemma3nTextConfig),
}

torch.set_num_threads(1)  # the models are tiny, and test machines are shared


def load(
    text_config: Mapping[str, Any], weights: Mapping[str, Float32Array], dtype: str
) -> Gemma4ForCausalLM:
    """Build the model in float32 on `weights` (checkpoint names without prefix).

    transformers rounds the two embedding scales to the dtype that the model runs in. A library is
    compiled for the checkpoint's own `dtype`, so the scales of that dtype are put in here.
    """
    kind, config_class = _CLASSES[text_config["model_type"]]
    config = config_class(**text_config)
    model: Gemma4ForCausalLM = kind._from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    state = {
        tensor_name(name, "transformers"): torch.from_numpy(np.array(value))
        for name, value in weights.items()
    }
    state.setdefault(HEAD, state["model.embed_tokens.weight"])
    model.load_state_dict(state, strict=True)
    for module in model.modules():
        if hasattr(module, "scalar_embed_scale"):
            rounded = torch.tensor(module.scalar_embed_scale).to(getattr(torch, dtype))
            module.embed_scale = rounded.to(torch.float32)
        for name in ("per_layer_projection_scale", "per_layer_input_scale"):  # Gemma 3n's
            if isinstance(getattr(module, name, None), torch.Tensor):
                scale = getattr(module, name).to(getattr(torch, dtype))
                setattr(module, name, scale.to(torch.float32))
    return model


def tiny(package: Path, recipe: str) -> Gemma4ForCausalLM:
    """`tiny` on the weights that a package's tensors mean."""
    config = Gemma4Config.from_dict(checkpoint.config())
    plan = storage_plan(parameter_table(config), RECIPES[recipe], None)
    cache = TensorCache.from_json(read_artifact(package / abi.TENSOR_CACHE_FILE))
    stored = StoredWeights(package, cache, plan)
    weights = {
        source.name: stored.read(source.name, 0, source.shape[0]).reshape(source.shape)
        for entry in plan
        for source in entry.parameter.sources
    }
    return load(checkpoint.config()["text_config"], weights, config.dtype)


def logits(model: Gemma4ForCausalLM, ids: Ids) -> Float32Array:
    """Logits (len(ids), vocab_size) of one whole sequence, without a cache."""
    with torch.no_grad():
        result = model(torch.tensor([list(ids)]), use_cache=False).logits[0]
    return np.asarray(result.numpy(), dtype=np.float32)


def last_logits(model: Gemma4ForCausalLM, ids: npt.NDArray[np.int64]) -> Float32Array:
    """Logits (sequences, vocab_size) after each of several sequences of the same length."""
    with torch.no_grad():
        result = model(torch.from_numpy(ids), use_cache=False).logits[:, -1]
    return np.asarray(result.numpy(), dtype=np.float32)


def routing_gaps(model: Gemma4ForCausalLM, ids: npt.NDArray[np.int64]) -> Float32Array:
    """How clearly experts are chosen in each of several sequences (sequences, length).

    The smallest distance, over layers and positions, of the last chosen score from the first that
    is not; infinite for a model without experts.
    """
    with noted_gaps(model, ids.shape) as gaps:
        if getattr(model.config, "enable_moe_block", False):
            last_logits(model, ids)
    return np.asarray(np.min(gaps, axis=(0, 2)))


@contextmanager
def noted_gaps(model: torch.nn.Module, shape: tuple[int, ...]) -> Iterator[list[Float32Array]]:
    """The distances that `routing_gaps` is of, an array of `shape` for each router and call.

    The first one is infinite, and the only one of a model without experts.
    """
    gaps = [np.full(shape, np.inf, np.float32)]

    def note(router: Any, inputs: Any, outputs: Any) -> None:
        chosen = router.config.top_k_experts
        scores = outputs[0].log().sort(dim=-1, descending=True).values
        gaps.append((scores[:, chosen - 1] - scores[:, chosen]).reshape(shape).numpy())

    hooks = [
        module.register_forward_hook(note)
        for module in model.modules()
        if type(module).__name__ == "Gemma4TextRouter"
    ]
    try:
        yield gaps
    finally:
        for hook in hooks:
            hook.remove()


def hidden_states(model: Gemma4ForCausalLM, ids: Ids) -> tuple[Float32Array, ...]:
    """The residual stream (len(ids), hidden_size) after each layer but the last.

    transformers replaces the last layer's by the output of the final norm, which is left out here.
    """
    with torch.no_grad():
        out = model(torch.tensor([list(ids)]), use_cache=False, output_hidden_states=True)
    return tuple(np.asarray(state[0].numpy()) for state in out.hidden_states[1:-1])
