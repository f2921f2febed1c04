"""Typed reading of a config's values."""

from __future__ import annotations

import pytest

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.fields import ConfigFields


def test_paths_lead_to_the_key() -> None:
    inner = ConfigFields({"a": {"b": {"c": 1}}}, "").fields("a").fields("b")
    assert inner.key("c") == "a.b.c"
    with pytest.raises(ConfigError, match=r"`a\.b\.d` is missing"):
        inner.require("d")


def test_unknown_means_neither_read_nor_ignored() -> None:
    fields = ConfigFields({"read": 1, "ignored": 2, "unknown": 3}, "text")
    fields.integer("read", 0, 9)
    with pytest.raises(ConfigError, match=r"`text\.unknown` is unknown"):
        fields.refuse_unknown({"ignored": "a reason"})
    fields.get("unknown")
    fields.refuse_unknown({"ignored": "a reason"})


@pytest.mark.parametrize("value", [0, 10, 5.0, "5", True, None, [5]])
def test_integer_is_an_integer_in_range(value: object) -> None:
    with pytest.raises(ConfigError, match="an integer from 1 to 9"):
        ConfigFields({"n": value}, "").integer("n", 1, 9)


def test_optional_integer() -> None:
    fields = ConfigFields({"null": None, "five": 5}, "")
    assert fields.optional_integer("null", 1, 9) is None
    assert fields.optional_integer("absent", 1, 9) is None
    assert fields.optional_integer("five", 1, 9) == 5


def test_fixed_key_may_be_absent_but_not_different() -> None:
    ConfigFields({}, "").fixed("bias", False)
    ConfigFields({"bias": False}, "").fixed("bias", False)
    with pytest.raises(ConfigError, match="`bias`: expected False, found True"):
        ConfigFields({"bias": True}, "").fixed("bias", False)


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(ConfigError) as caught:
        ConfigFields({"n": "x" * 10_000}, "").integer("n", 1, 9)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [[1] * 257, [1, 2**63], [None], [True], "1", 1.0])
def test_token_ids(value: object) -> None:
    with pytest.raises(ConfigError, match="token ids"):
        ConfigFields({"eos": value}, "").token_ids("eos")
    assert ConfigFields({"eos": [1, 106]}, "").token_ids("eos") == (1, 106)
    assert ConfigFields({"eos": -1}, "").token_ids("eos") == (-1,)
    assert ConfigFields({"eos": []}, "").token_ids("eos") == ()
    assert ConfigFields({"eos": [106, 1, 106]}, "").token_ids("eos") == (106, 1)
