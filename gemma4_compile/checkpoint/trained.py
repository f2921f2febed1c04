"""Google's checkpoints that were trained for few bits (QAT).

Those for 4 bits, by the ones that they stand in for; and those for phones.
"""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.checkpoint.files import CONFIG_FILE, read_json
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.quantised.read import quantization_of
from gemma4_compile.errors import CheckpointError
from gemma4_compile.model_spec.config.gemma4 import preset_names
from gemma4_compile.model_spec.config.variants import rounds_activations

_OWNER, _TRAINED = "google/", "-qat-q4_0-unquantized"
_GENERATION = "gemma-4-"  # of Gemma 3n there are none
_FOR_PHONES = ("-qat-mobile-transformers", "-qat-mobile-ct")


def trained_twin(model: str) -> str | None:
    """The hub id of the same size, trained for 4 bits; None for any other name.

    Parameters
    ----------
    model : a hub id of Google's or the name of a preset
    """
    name = model.removeprefix(_OWNER)
    is_released = name in preset_names() and name.startswith(_GENERATION)
    return f"{_OWNER}{name}{_TRAINED}" if is_released else None


def is_trained(model: str) -> bool:
    """Return whether a hub id is of such a checkpoint."""
    return trained_twin(model.removesuffix(_TRAINED)) == model


def is_named_trained(model: str) -> bool:
    """Return whether a hub id or directory of anyone's is named as such checkpoints are."""
    return model.rstrip("/").endswith(_TRAINED)


def is_for_phones(model: str) -> bool:
    """Return whether a directory's config.json says so, or the name of a hub id.

    What is wrong with the directory is said where it is opened.
    """
    path = local_path(model)
    if not path.is_dir():
        return model.endswith(_FOR_PHONES)
    try:
        values = quantization_of(read_json(path / CONFIG_FILE))
    except CheckpointError:
        return False
    return isinstance(values, Mapping) and rounds_activations(values)
