"""Configs of compressed-tensors: the schemes that are read, and what is refused by its key."""

from __future__ import annotations

from typing import Any

import pytest

from gemma4_compile.checkpoint.quantised.compressed_scheme import read_config
from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.variants import rounds_activations


def config(weights: dict[str, object] | None = None, **group: object) -> dict[str, Any]:
    given = {"num_bits": 4, "group_size": 32, "strategy": "group", **(weights or {})}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": given, **group}}}


@pytest.mark.parametrize(
    ("weights", "shapes", "text"),
    [
        ({}, ((6, 3),), "4-bit integers in groups of 32"),
        ({"symmetric": False}, ((6, 3),), "4-bit integers in groups of 32 with zero points"),
        ({"strategy": None}, ((6, 3),), "4-bit integers in groups of 32"),
        ({"strategy": None, "group_size": -1}, ((6, 1), (6,)), "4-bit integers by rows"),
        (
            {"strategy": None, "group_size": None, "num_bits": 8},
            ((), (1,), (1, 1)),
            "8-bit integers with one scale",
        ),
        (
            {"strategy": "block", "block_structure": [4, 90], "type": "float", "num_bits": 8},
            ((2, 2),),
            "8-bit floats in groups of 4 x 90",
        ),
    ],
)
def test_a_scheme_says_which_scales_it_has(
    weights: dict[str, object], shapes: tuple[tuple[int, ...], ...], text: str
) -> None:
    (scheme,) = read_config(config(weights)).schemes
    assert scheme.scale_shapes(6, 96) == shapes
    assert scheme.text == text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "config_groups` is missing"),
        ({"config_groups": {"W4A16": ["Linear"]}}, r"config_groups\.W4A16"),
        (config({"num_bits": 3}), r"weights\.num_bits`: 3 bits"),
        (config({"num_bits": 4.0}), "num_bits"),
        (config({"type": "float", "num_bits": 6}), "6 bits"),
        (config({"group_size": -1}), "group_size"),
        (config({"group_size": None}), "group_size"),
        ({"config_groups": {str(i): {} for i in range(300)}}, "up to 256 groups, found 300"),
        (config({"strategy": "attn_head"}), "strategy"),
        (config({"strategy": "block", "block_structure": [0, 1]}), "block_structure"),
        (config({"symmetric": False, "type": "float"}), "symmetric"),
        (config(format="marlin-24"), r"group_0\.format.*marlin"),
        ({**config(), "format": "sparse-24-bitmask"}, r"format.*sparse"),
        ({**config(), "sparsity_config": {"format": "sparse-bitmask"}}, "sparsity_config"),
        ({**config(), "transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        (config(output_activations={"num_bits": 4}), "rounded in another way"),
        (config(output_activations={"num_bits": 8, "dynamic": True}), "rounded in another way"),
        (config(output_activations={"num_bits": 8, "symmetric": False}), "rounded in another way"),
        (config(output_activations={"num_bits": 8, "type": "float"}), "rounded in another way"),
        (config(input_activations={"num_bits": 8, "strategy": "token"}), "rounded in another way"),
        (
            config(
                input_activations={"num_bits": 8, "dynamic": True},
                output_activations={"num_bits": 8},
            ),
            "and their inputs by others",
        ),
    ],
)
def test_configs_that_are_not_read(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(values)


@pytest.mark.parametrize(
    ("fields", "rounds"),
    [
        ({"output_activations": {"num_bits": 8}}, True),
        ({"input_activations": {"num_bits": 8, "strategy": "tensor"}}, True),
        ({"input_activations": {"num_bits": 8, "dynamic": True}}, False),
        ({"input_activations": {"num_bits": 8, "type": "float"}}, False),
        ({}, False),
    ],
)
def test_activations_of_fixed_scales_are_rounded_by_a_package(
    fields: dict[str, Any], rounds: bool
) -> None:
    values: dict[object, object] = {"quant_method": "compressed-tensors"}
    values.update(config(**fields))
    assert (read_config(config(**fields)).groups is not None) is rounds
    assert rounds_activations(values) is rounds
