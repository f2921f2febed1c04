"""The plan of each decoder layer, resolved once from the config."""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.model_spec.config.gemma3n import Gemma3nConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers.plan import LayerPlan
from gemma4_compile.model_spec.text import layer_plan


def section(config: Gemma4Config) -> Gemma3nConfig:
    """What Gemma 3n has besides, of a config of one."""
    assert config.gemma3n is not None, "a config of Gemma 3n"
    return config.gemma3n


def layer_plans(config: Gemma4Config) -> tuple[LayerPlan, ...]:
    """Resolve every layer: as Gemma 4's, with an MLP of its own width.

    Raises
    ------
    ConfigError
        As of Gemma 4's.
    """
    plans = layer_plan.layer_plans(config)
    sizes = section(config).intermediate_sizes
    return tuple(
        replace(plan, intermediate_size=size) for plan, size in zip(plans, sizes, strict=True)
    )
