"""What the training of the towers minimises: the answers, and what single rows are to show.

The rows' own losses teach the towers to see long before the decoder can read them. The first three
rows of a picture are to name its shapes in reading order, the last row of a sound what it holds.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tools.training.tiny.media_batches import MediaBatch, Pictures, Sounds
from tools.training.tiny.media_model import Inputs, MediaModel, Read
from tools.training.tiny.pictures import IGNORED, MOST_SHAPES

_EMPTY_WEIGHT = 0.05  # of rows that show nothing: most of them


def answers(read: Read, inputs: Inputs) -> torch.Tensor:
    """Cross entropy of the tokens to predict."""
    return functional.cross_entropy(read.logits, inputs.ids.flatten()[inputs.places])


def _classes(logits: torch.Tensor, wanted: torch.Tensor, empty: float = 1.0) -> torch.Tensor:
    """Mean cross entropy of the labels that count, those of class 0 by the weight `empty`."""
    labels = wanted.flatten()
    each = functional.cross_entropy(
        logits.flatten(0, -2).float(), labels, ignore_index=IGNORED, reduction="none"
    )
    weights = torch.where(labels == 0, empty, 1.0) * (labels != IGNORED)
    return (each * weights).sum() / weights.sum().clamp_min(1.0)


def of_pictures(model: MediaModel, rows: torch.Tensor, some: Pictures) -> torch.Tensor:
    """Losses of the rows of pictures."""
    first = rows[:, :MOST_SHAPES]
    blocks, slots, places = (
        torch.from_numpy(labels).to(rows.device)
        for labels in (some.blocks, some.slots, some.places)
    )
    return (
        _classes(model.block_head(rows), blocks, _EMPTY_WEIGHT)
        + _classes(model.slot_head(first), slots)
        + 0.5 * _classes(model.place_head(first), places)
    )


def of_sounds(
    model: MediaModel, rows: torch.Tensor, ends: torch.Tensor, some: Sounds
) -> torch.Tensor:
    """Losses of the rows of sounds."""
    states, contents = (
        torch.from_numpy(labels).to(rows.device) for labels in (some.states, some.contents)
    )
    last = rows.flatten(0, 1)[ends]
    return _classes(model.state_head(rows[:, : states.shape[1]]), states, _EMPTY_WEIGHT) + (
        functional.cross_entropy(model.content_head(last), contents)
    )


def of_rows(model: MediaModel, read: Read, inputs: Inputs, batch: MediaBatch) -> torch.Tensor:
    """Losses of the rows of all media of a batch."""
    found = read.logits.new_zeros(())
    if batch.pictures is not None and read.picture_rows is not None:
        found = found + of_pictures(model, read.picture_rows, batch.pictures)
    if batch.sounds is not None and read.sound_rows is not None and inputs.ends is not None:
        found = found + of_sounds(model, read.sound_rows, inputs.ends, batch.sounds)
    return found
