"""The checkpoint of each size that is recommended for 4 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.checkpoint.trained import is_for_phones, is_trained, trained_twin
from gemma4_compile.options.package import DEFAULT_MODEL, DEFAULT_PRESET


@pytest.mark.parametrize("size", ["E2B", "E4B", "12B", "26B-A4B", "31B"])
@pytest.mark.parametrize("front", ["google/", ""])
def test_every_size_has_one(size: str, front: str) -> None:
    expected = f"google/gemma-4-{size}-it-qat-q4_0-unquantized"
    assert trained_twin(f"{front}gemma-4-{size}-it") == expected
    assert trained_twin(expected) is None
    assert is_trained(expected)
    assert not is_trained(f"{front}gemma-4-{size}-it")


@pytest.mark.parametrize(
    "model", ["somebody/gemma-4-E2B-it", "google/gemma-4-E2B", "tiny", "folder/google", ""]
)
def test_other_models_have_none(model: str) -> None:
    assert trained_twin(model) is None


@pytest.mark.parametrize("size", ["E2B", "E4B"])
def test_hub_ids_for_phones_are_known_by_their_names(size: str) -> None:
    assert is_for_phones(f"google/gemma-4-{size}-it-qat-mobile-transformers")
    assert not is_for_phones(f"google/gemma-4-{size}-it-qat-q4_0-unquantized")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"quantization_config": {"quant_method": "gemma"}}', True),
        ('{"text_config": {"quantization_config": {"quant_method": "gemma"}}}', True),
        ('{"quantization_config": {"quant_method": "gptq"}}', False),
        ('{"quantization_config": 7}', False),
        ("{", False),
        (None, False),
    ],
)
def test_directories_for_phones_are_known_by_their_config(
    config: str | None, expected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "gemma-4-E2B-it-qat-mobile-transformers"
    path.mkdir()
    if config is not None:
        (path / "config.json").write_text(config)
    assert is_for_phones(str(path)) is expected


def test_the_default_is_trained_for_the_default_recipe() -> None:
    assert trained_twin(DEFAULT_PRESET) == DEFAULT_MODEL
