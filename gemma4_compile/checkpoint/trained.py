"""Google's checkpoints that were trained for 4 bits (QAT), by the ones that they stand in for."""

from __future__ import annotations

from gemma4_compile.model_spec.config.gemma4 import preset_names

_OWNER, _TRAINED = "google/", "-qat-q4_0-unquantized"


def trained_twin(model: str) -> str | None:
    """The hub id of the same size, trained for 4 bits; None for any other name.

    Parameters
    ----------
    model : a hub id of Google's or the name of a preset
    """
    name = model.removeprefix(_OWNER)
    return f"{_OWNER}{name}{_TRAINED}" if name in preset_names() else None


def is_trained(model: str) -> bool:
    """Return whether a hub id is of such a checkpoint."""
    return trained_twin(model.removesuffix(_TRAINED)) == model
