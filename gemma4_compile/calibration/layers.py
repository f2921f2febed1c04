"""Codes of every matrix of a model, layer by layer: text in, finished parts of the spool out.

The inputs of a matrix are those that the checkpoint's own weights give it: layers know nothing of
one another's rounding, so that one pass over the weights is enough, and each can be finished alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from gemma4_compile.calibration.form import Form, Pair
from gemma4_compile.calibration.gptq import InputStatistics, choose_codes, form_of
from gemma4_compile.calibration.schemes import CalibratedScheme
from gemma4_compile.calibration.spool import Spool
from gemma4_compile.calibration.streaming import BEFORE_LAYERS, Layer, Rows, StreamedModel


@dataclass(frozen=True)
class LayerCalibration:
    """Chooses codes of the layers that it visits.

    Attributes
    ----------
    schemes : of the tensors that are calibrated, by their names in the checkpoint
    advance : told of the float32 bytes of finished tensors
    """

    spool: Spool
    schemes: Mapping[str, CalibratedScheme]
    advance: Callable[[int], None]

    def run(self, model: StreamedModel, rows: Rows) -> None:
        """Finish every layer that is not finished yet."""
        model.visit(rows, self._visit)

    def _visit(self, layer: Layer) -> None:
        part = part_of(layer.prefix)
        own = {
            name: parameter
            for name, parameter in (
                (layer.prefix + name, parameter)
                for name, parameter in layer.module.named_parameters()
            )
            if name in self.schemes and name.startswith(layer.prefix or BEFORE_LAYERS)
        }
        nbytes = sum(4 * parameter.numel() for parameter in own.values())
        if own and not self.spool.has(part):
            self.spool.note(part, self._stored(layer, own))
        self.advance(nbytes)

    def _stored(self, layer: Layer, own: Mapping[str, torch.Tensor]) -> dict[str, Pair]:
        found: dict[str, Pair] = {}
        known: dict[tuple[int, int], InputStatistics] = {}
        for name, weight in own.items():
            rows, form = layer.inputs.get(name), form_of(self.schemes[name])
            if rows is None:
                continue
            key = id(rows), form.block_size
            if key not in known:
                known[key] = InputStatistics.of(rows, form.block_size)
            found[name] = choose_codes(weight, known[key], form, name)
        return found | self._experts(layer, own)

    def _experts(self, layer: Layer, own: Mapping[str, torch.Tensor]) -> dict[str, Pair]:
        """Each expert by the positions that chose it; one that none chose as without a text."""
        names = [f"{layer.prefix}experts.{name}_proj" for name in ("gate_up", "down")]
        wanted = [name for name in names if name in own]
        if layer.routed is None or not wanted:
            return {}
        rows, choices = layer.routed
        module = layer.module.experts
        pieces: dict[str, list[Pair]] = {name: [] for name in wanted}
        for expert in range(module.num_experts):
            given = rows[(choices == expert).any(dim=1)]
            gate, up = (given @ module.gate_up_proj[expert].T).chunk(2, dim=-1)
            inputs = dict(zip(names, (given, module.act_fn(gate) * up), strict=True))
            for name in wanted:
                form = form_of(self.schemes[name])
                pieces[name].append(_of_expert(own[name][expert], inputs[name], form, name))
        return {
            name: (np.concatenate(words), np.concatenate(scales))
            for name, made in pieces.items()
            for words, scales in [tuple(zip(*made, strict=True))]
        }


def _of_expert(matrix: torch.Tensor, inputs: torch.Tensor, form: Form, name: str) -> Pair:
    if not len(inputs):
        return form.plain(matrix.cpu().numpy(), name)
    return choose_codes(matrix, InputStatistics.of(inputs, form.block_size), form, name)


def part_of(name: str) -> str:
    """Name of the part of the spool that a tensor, or the prefix of a layer, belongs to."""
    if not name.startswith("layers."):
        return "before"
    return "-".join(name.split(".")[:2])
