"""A step of several sequences, each with a sampler of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Listed
from itertools import groupby
from typing import TypeAlias

import numpy as np
import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.engine.device_sampling import DeviceSampling
from gemma4_compile.runtime.engine.joint import Joint, JointRows, Riders
from gemma4_compile.runtime.engine.model_runner import ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Sampler, TokenChooser

Drawn: TypeAlias = "tuple[list[Sequence], tvm_ffi.Tensor]"
"""Sequences and their tokens, int32 (n,), that the device has yet to draw."""


class Turns:
    """Adds a token to each of some sequences, and chooses the next one of each."""

    def __init__(self, device: Device, runner: ModelRunner, joint: Joint, most: int) -> None:
        """Take the model, for at most so many sequences."""
        self._device, self._runner, self._joint = device, runner, joint
        self._tokens = device.empty((most,), "int32")  # those that were drawn
        self._drawing: dict[int, DeviceSampling] = {}  # by slot

    def step(self, sequences: Collection[Sequence], riders: Riders | None = None) -> list[int]:
        """As `Engine.step`."""
        if len(set(sequences)) < len(sequences):
            raise UsageError("step: a sequence is named twice")
        samplers = {sequence: self._check(sequence) for sequence in sequences}
        if riders is not None:
            self._check_riders(sequences, riders)
        options = {one: self._options(sampler) for one, sampler in samplers.items()}
        for sequence in sequences:
            if sequence.chosen is None:
                self._runner.last_logits(sequence)
        drawn = self._add(samplers, options, riders)
        done = {sequence for group, _ in drawn for sequence in group}
        for sequence, own in options.items():
            if own is not None and sequence not in done:
                launched = self._sampling(sequence).launch(own, _random(samplers[sequence]))
                drawn.append(([sequence], launched))
        versions = [sequence.version for sequence in sequences]
        read = self._read(drawn)
        tokens = [
            self._choose(one, sampler) if options[one] is None else read[one]
            for one, sampler in samplers.items()
        ]
        if versions != [sequence.version for sequence in sequences]:
            raise _changed()
        # Of all or of none: who calls gets the tokens of all or of none.
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.chosen = token
        return tokens

    def _add(
        self,
        samplers: Mapping[Sequence, TokenChooser],
        options: Mapping[Sequence, DrawOptions | None],
        riders: Riders | None,
    ) -> list[Drawn]:
        """Add the tokens that wait, and launch the draws of rows that have their options in common.

        Their logits are not kept, unless a sampler of the host may end the step with an error: then
        the next step draws again. So it does after Ctrl-C, from logits that are made again.
        """
        waiting = [(one, one.chosen) for one in samplers if one.chosen is not None]
        waiting.sort(key=lambda pair: options[pair[0]] or ())  # equal ones side by side
        keeps, drawn = None in options.values(), list[Drawn]()
        for rows in self._forwards([one for one, _ in waiting], [at for _, at in waiting], riders):
            first = 0
            for own, group in groupby(rows.sequences, key=options.__getitem__):
                members = list(group)
                if own is None or len(members) == 1 or keeps or not rows.can_draw:
                    rows.keep(first, len(members))
                if own is not None and len(members) > 1 and rows.can_draw:
                    uniforms = [_random(samplers[one]) for one in members]
                    drawn.append((members, rows.draw(first, own, uniforms)))
                first += len(members)
        return drawn

    def _forwards(
        self, sequences: Listed[Sequence], tokens: Listed[int], riders: Riders | None
    ) -> Iterable[JointRows]:
        if riders is None:
            return self._joint.forwards(sequences, tokens)
        return [self._joint.add_beside(sequences, tokens, riders)]

    def _check_riders(self, sequences: Collection[Sequence], riders: Riders) -> None:
        """Errors as of `Engine.step`."""
        self._runner.check(riders.sequence, riders.ids)
        rows = sum(one.chosen is not None for one in sequences)
        most = self._joint.most_riders(rows)
        if len(riders.ids) > most:
            raise UsageError(
                f"step: beside {rows} tokens expected at most {most} rows of a prompt, found "
                f"{len(riders.ids)}"
            )
        if riders.sequence in sequences:
            raise UsageError("step: a sequence is named twice: its prompt has not been read")

    def _check(self, sequence: Sequence) -> TokenChooser:
        """The sampler; errors as of `Engine.step`."""
        sequence.check(0)
        if sequence.sampler is None:
            raise UsageError("step: a sequence has no sampler to choose its next token")
        if sequence.chosen is not None:
            self._runner.check(sequence, [sequence.chosen])
        elif not sequence.length:
            raise UsageError("step: a sequence has no tokens: add a prompt first")
        elif sequence.logits is None and sequence.added is None:
            raise UsageError(
                "step: a sequence has no logits of its last token, since tokens were taken back or "
                "a draw used them: add a token first"
            )
        return sequence.sampler

    def _options(self, sampler: TokenChooser) -> DrawOptions | None:
        """What the device draws by; None where the host chooses."""
        if isinstance(sampler, Sampler) and self._device.kind.draws:
            return sampler.device_options
        return None

    def _read(self, drawn: Listed[Drawn]) -> dict[Sequence, int]:
        """Wait for all tokens that were drawn, once."""
        if len(drawn) < 2:
            return {
                one: int(token)
                for group, tokens in drawn
                for one, token in zip(group, self._device.read(tokens), strict=True)
            }
        place = 0
        for group, tokens in drawn:
            copy(tokens, view(self._tokens, (len(group),), 4 * place))
            place += len(group)
        order = [one for group, _ in drawn for one in group]
        return dict(zip(order, self._device.read(self._tokens)[:place].tolist(), strict=True))

    def _choose(self, sequence: Sequence, sampler: TokenChooser) -> int:
        if sequence.logits is None:
            raise _changed()
        logits = self._device.read(sequence.logits).reshape(-1)
        token, last = sampler(logits), len(logits) - 1
        if not isinstance(token, (int, np.integer)) or not 0 <= token <= last:
            raise UsageError(f"step: a sampler chose {token!r}: expected a token id, 0 to {last}")
        return int(token)

    def _sampling(self, sequence: Sequence) -> DeviceSampling:
        found = self._drawing.get(sequence.slot)
        if found is None or found.sequence is not sequence:
            found = DeviceSampling(self._device, self._runner, sequence)
            self._drawing[sequence.slot] = found
        return found


def _random(sampler: TokenChooser) -> float:
    assert isinstance(sampler, Sampler), "else the host chooses"
    return sampler.random()


def _changed() -> UsageError:
    return UsageError("step: a sampler changed a sequence of the step: change none before it ends")
