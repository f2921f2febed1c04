"""Weights of `models.MOE_LIKE` whose routers choose as a test needs it.

A few channels of the residual stream are given to the router: the embedding alone writes them, and
the final norm hides them from the head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.models import MOE_LIKE, Float32Array

Weights = Mapping[str, Float32Array]

EXPERTS = int(MOE_LIKE["num_experts"])
TOP_K = int(MOE_LIKE["top_k_experts"])
LAYERS = int(MOE_LIKE["num_hidden_layers"])
_LOUD = 6.0  # of an embedding channel; the others have a deviation of 0.5
_SCORE = 8.0  # weight of a loud channel in a router
_HIDDEN = 0.01  # weight of a loud channel in the final norm


def _with_loud_channels(weights: Weights, channels: Float32Array) -> dict[str, Float32Array]:
    """Weights whose first embedding channels are `channels` (tokens, n) times _LOUD."""
    count = channels.shape[1]
    changed = {name: values.copy() for name, values in weights.items()}
    changed["embed_tokens.weight"][:, :count] = channels * _LOUD
    changed["norm.weight"][:count] = _HIDDEN
    for layer in range(LAYERS):
        for branch in ("attention", "feedforward"):
            changed[f"layers.{layer}.post_{branch}_layernorm.weight"][:count] = 0
    return changed


def _router_rows(changed: dict[str, Float32Array], scores: Float32Array) -> None:
    """Let every router read the loud channels alone, (experts, n), and a little of the others."""
    for layer in range(LAYERS):
        rows = changed[f"layers.{layer}.router.proj.weight"]
        rows *= 0.05
        rows[:, : scores.shape[1]] = scores * _SCORE


def decided_by_token(weights: Weights) -> dict[str, Float32Array]:
    """Each token has its own TOP_K experts, by a wide margin; all experts are chosen by some."""
    tokens = weights["embed_tokens.weight"].shape[0]
    channels = np.zeros((tokens, EXPERTS), np.float32)
    for token in range(tokens):
        chosen = np.random.default_rng(token).permutation(EXPERTS)[:TOP_K]
        channels[token, chosen] = np.linspace(1.0, 0.7, TOP_K)
    changed = _with_loud_channels(weights, channels)
    _router_rows(changed, np.eye(EXPERTS, dtype=np.float32))
    return changed


def same_for_all(weights: Weights, chosen: Sequence[int]) -> dict[str, Float32Array]:
    """Every token in every layer has the experts `chosen`; nobody ever chooses another."""
    channels = np.ones((weights["embed_tokens.weight"].shape[0], 1), np.float32)
    changed = _with_loud_channels(weights, channels)
    scores = np.full((EXPERTS, 1), -1.0, np.float32)
    scores[list(chosen), 0] = np.linspace(1.0, 0.9, len(chosen))
    _router_rows(changed, scores)
    return changed


def with_twins(
    weights: Weights, twins: Sequence[tuple[int, int]], difference: float
) -> dict[str, Float32Array]:
    """Pairs of experts that compute the same and score the same, but for a relative difference.

    Which of the two is chosen changes nothing, so a test can look at what else happens.
    """
    changed = {name: values.copy() for name, values in weights.items()}
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        for one, other in twins:
            for name in ("experts.gate_up_proj", "experts.down_proj", "router.per_expert_scale"):
                changed[prefix + name][other] = changed[prefix + name][one]
            rows = changed[f"{prefix}router.proj.weight"]
            rows[other] = rows[one] * np.float32(1.0 + difference)
    return changed
