"""Which reader a quantised checkpoint has, by its config, and what the user is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gemma4_compile.checkpoint.quantised import (
    bitsandbytes,
    cast,
    compressed,
    fp8,
    gptq,
    mlx,
    phones,
)
from gemma4_compile.checkpoint.quantised.modules import Weights
from gemma4_compile.checkpoint.quantised.steps import StepTable, complete_steps
from gemma4_compile.checkpoint.safetensors_file import TensorInfo
from gemma4_compile.model_spec.config.variants import PHONE_METHOD, quantised_by, rounds_activations
from gemma4_compile.options.process import warn

KEYS = ("quantization", "quantization_config")
"""MLX has the first, or both with the same content."""
_READERS: Mapping[str, Callable[[Mapping[str, object], Mapping[str, TensorInfo]], Weights]] = {
    "compressed-tensors": compressed.read_weights,
    "gptq": gptq.read_gptq,
    "awq": gptq.read_awq,
    "bitsandbytes": bitsandbytes.read_weights,
    "fp8": fp8.read_weights,
    "mlx": mlx.read_weights,
}


def quantization_of(config: Mapping[str, object]) -> object:
    """What a `config.json` says of how its weights were quantised; None if it says nothing."""
    text = config.get("text_config")
    places = (config, text if isinstance(text, Mapping) else {})  # in transformers' order
    given = (place[key] for place in places for key in KEYS if place.get(key) not in (None, {}))
    return next(given, None)


def check_config(config: Mapping[str, object]) -> None:
    """Refuse a quantised checkpoint by its `config.json`, before its weights are downloaded.

    Raises
    ------
    ConfigError
        Naming the key that says what is not read.
    """
    _read(config, {})


def dequantised(
    config: Mapping[str, object],
    tensors: Mapping[str, TensorInfo],
    *,
    is_named: bool = True,
    option: str = "",
) -> Mapping[str, TensorInfo]:
    """A checkpoint's tensors; quantised ones as the weights that they stand for.

    Parameters
    ----------
    config : the checkpoint's `config.json`
    is_named : warn of what changes replies
    option : what warnings begin with

    Raises
    ------
    CheckpointError, ConfigError
        If they are damaged, or held in a way that is not read.
    """
    found = _read(config, tensors)
    if found is None:
        return tensors
    method, weights = found
    if is_named and not any(tensor.decoder for tensor in weights.tensors.values()):
        warn(
            f"{option}config.json has the checkpoint quantised by {method}, and its weights are "
            "whole: they are taken as they are, transformers may round them as it loads them",
            f"leave `{KEYS[1]}` out of config.json if it is not meant",
        )
        return weights.tensors  # without scales of keys and values, which may be all that there is
    if is_named and weights.rounded is not None:
        warn(
            f"{option}the checkpoint's weights were rounded before ({method}, {weights.rounded}), "
            "and where the recipe has other levels they are rounded again",
            "take a recipe of 8 bits or f16, or the checkpoint that it was quantised from",
        )
    if is_named and weights.left_out:
        warn(
            f"{option}{method} rounds more than weights here: {', '.join(weights.left_out)}; a "
            "package takes the weights alone, so that its replies are not those of that runtime",
            "gemma4-verify compares with the weights; nothing is to be done if they are meant",
        )
    return weights.tensors


def _read(
    config: Mapping[str, object], tensors: Mapping[str, TensorInfo]
) -> tuple[str, Weights] | None:
    values = quantization_of(config)
    if not isinstance(values, Mapping):
        weights = cast.read_weights(tensors)
        return None if weights is None else (cast.METHOD, weights)
    method = quantised_by(values)
    if method == PHONE_METHOD:
        return method, phones.read_weights(values, tensors, config)
    reader = None if method is None else _READERS.get(method)
    if reader is None or method is None:
        return None
    weights = reader(values, tensors)
    if not rounds_activations(values) or not tensors:
        return method, weights
    found = dict(weights.tensors)
    complete_steps(found, StepTable.of(config))
    return method, replace(weights, tensors=found)
