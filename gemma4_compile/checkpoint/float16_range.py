"""Check that a recipe with float16 activations holds what a checkpoint's norms can give.

A normed vector of N channels has no value above sqrt(N): all of its length in one channel. Times
the norm's weight, that must be a float16, or the value is infinite and the answer NaN, for some
inputs and in silence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gemma4_compile.checkpoint.safetensors_file import Float32Array
from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.parameters import Parameter, Role
from gemma4_compile.quantization.recipe import Recipe
from gemma4_compile.quantization.schemes import RECIPES

LARGEST = 65_504.0
"""Of float16."""

# Norms whose results are stored as activations, or as keys. The others' are float32: q, what is
# added to the residual stream, and per-layer embeddings.
_STORED = (
    "input_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "pre_feedforward_layernorm_2.weight",
    "self_attn.k_norm.weight",
    # Of the audio tower; a LayerNorm is bounded as they are.
    *("subsample_conv_projection.layer0.norm.weight", "conv_norm.weight"),
    *("subsample_conv_projection.layer1.norm.weight", "pre_layer_norm.weight"),
    "norm_pre_attn.weight",
    "vision_embedder.patch_ln1.weight",  # of 12B's pictures, a LayerNorm, too
)
_FINAL = ("norm.weight", "drafter.model.norm.weight")
_ROUTER = "router.scale"  # its normed input is divided by sqrt(N), too

ReadRows = Callable[[str, int, int], Float32Array]


def _bounds(table: Sequence[Parameter], read_rows: ReadRows) -> Iterator[tuple[float, str]]:
    """The largest value after each norm, and the norm's name in the checkpoint."""
    vectors = (parameter for parameter in table if parameter.role is Role.VECTOR)
    for source in itertools.chain.from_iterable(vector.sources for vector in vectors):
        routed = source.name.endswith(_ROUTER)
        if routed or source.name in _FINAL or source.name.endswith(_STORED):
            (size,) = source.shape
            weight = np.abs(read_rows(source.name, 0, size))
            largest = float(weight[np.isfinite(weight)].max(initial=0))
            yield largest * (1.0 if routed else math.sqrt(size)), source.name


def check_norms(
    table: Sequence[Parameter],
    recipe: Recipe,
    read_rows: ReadRows,
    wider_libraries: Sequence[str] = (),
) -> None:
    """Refuse a recipe in which a norm's result may overflow.

    Weights that are not finite are left to the conversion, which names them.

    Parameters
    ----------
    wider_libraries : names of those that compute in float32 over the same weights

    Raises
    ------
    QuantizationError
        If one may; the hint names recipes that hold it.
    """
    if recipe.activation_dtype != "float16":
        return
    bound, name = max(_bounds(table, read_rows), default=(0.0, ""))
    if bound > LARGEST:
        wider = [other.name for other in RECIPES.values() if other.activation_dtype == "float32"]
        hint = f"use --quant {' or '.join(wider)}, whose activations are float32"
        if wider_libraries:
            names = ",".join(wider_libraries)
            hint = f"use --libraries {names}, which compute in float32 with the same weights"
        raise QuantizationError(
            f"`{name}` makes values of up to {bound:.0f}, and the activations of recipe "
            f"`{recipe.name}` are float16, which ends at {LARGEST:.0f}",
            hint=hint,
        )
