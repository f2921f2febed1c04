"""The text section alone, as a model with other parts would read it."""

from __future__ import annotations

from dataclasses import fields

from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.config.keys import TEXT_DEFAULTS, TOP_DEFAULTS
from gemma4_compile.model_spec.config.text import TextConfig, read_text
from gemma4_compile.model_spec.config.variants import TEXT_TYPES
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from tests.models import E2B_LIKE, config_file


def test_a_section_is_read_and_planned_without_the_other_inputs() -> None:
    values = config_file(E2B_LIKE, "hub", "float32")
    top = ConfigFields(values, "", TOP_DEFAULTS)
    kind = TEXT_TYPES[str(values["model_type"])]
    config = read_text(top, top.fields("text_config", TEXT_DEFAULTS[kind]))
    whole = Gemma4Config.from_dict(values)
    assert type(config) is TextConfig
    assert {f.name: getattr(whole, f.name) for f in fields(config)} == vars(config)
    assert layer_plans(config) == layer_plans(whole)
