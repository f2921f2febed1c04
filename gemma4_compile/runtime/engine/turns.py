"""A step of several sequences, each with a sampler of its own.

Where the device draws all of their tokens, and the host reads them beside its work, the forward
after them is launched before they are read: the device has something to do while the host looks at
them. The next step takes what that gave, if it is of the same tokens; sequences that are not in it,
or that anything else is done with, take theirs back (`Sequence.take_back`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np
import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.device.cuda_runtime import Readback
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.engine.device_sampling import DeviceSampling
from gemma4_compile.runtime.engine.joint import Joint, JointRows, Riders
from gemma4_compile.runtime.engine.model_runner import ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.sampling.sampling import DrawOptions, Sampler, TokenChooser

Drawn: TypeAlias = "tuple[list[Sequence], tvm_ffi.Tensor]"
"""Sequences and their tokens, int32 (n,), that the device has yet to draw."""
_ABSENT: DrawOptions = (0.0, 0.0)  # of one that is not in the step


@dataclass(frozen=True)
class _Ahead:
    """A forward that was launched after tokens that nobody had read by then.

    Attributes
    ----------
    rows : what it gave
    tokens : those, by sequence
    """

    rows: JointRows
    tokens: Mapping[Sequence, int]


class Turns:
    """Adds a token to each of some sequences, and chooses the next one of each."""

    def __init__(self, device: Device, runner: ModelRunner, joint: Joint, most: int) -> None:
        """Take the model, for at most so many sequences."""
        self._device, self._runner, self._joint = device, runner, joint
        self._tokens = device.empty((most,), "int32")  # those that were drawn
        self._drawing: dict[int, DeviceSampling] = {}  # by slot
        self._ahead: _Ahead | None = None

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
        fresh = [one for one in sequences if one.chosen is None]
        drawn = self._add(samplers, options, riders)
        done = {sequence for group, _ in drawn for sequence in group}
        for sequence, own in options.items():
            if own is not None and sequence not in done:
                launched = self._sampling(sequence).launch(own, _random(samplers[sequence]))
                drawn.append(([sequence], launched))
        versions = [sequence.version for sequence in sequences]
        order, drawn_tokens = self._gather(drawn)
        if order and self._readback is not None:
            self._readback.queue(drawn_tokens, len(order))
        ahead = None
        if riders is None and not fresh and self._can_go_ahead(order, samplers):
            ahead = self._joint.add_ahead(order, drawn_tokens)
        read = dict(zip(order, self._read(drawn_tokens, len(order)), strict=True))
        if ahead is not None:
            self._ahead = _Ahead(ahead, read)
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
        present = {one: options[one] for one, _ in waiting}
        keeps, drawn = None in options.values(), list[Drawn]()
        for rows in self._forwards(waiting, riders):
            first = 0
            for own, group in groupby(rows.sequences, key=lambda one: present.get(one, _ABSENT)):
                members = list(group)
                if own is not _ABSENT:
                    if own is None or len(members) == 1 or keeps or not rows.can_draw:
                        rows.keep(first, len(members))
                    if own is not None and len(members) > 1 and rows.can_draw:
                        uniforms = [_random(samplers[one]) for one in members]
                        drawn.append((members, rows.draw(first, own, uniforms)))
                first += len(members)
        for one, token_id in waiting:
            one.added = token_id
        return drawn

    def _forwards(
        self, waiting: Listed[tuple[Sequence, int]], riders: Riders | None
    ) -> Iterable[JointRows]:
        ahead, self._ahead = self._ahead, None
        sequences, tokens = [one for one, _ in waiting], [token_id for _, token_id in waiting]
        if riders is not None:
            return [self._joint.add_beside(sequences, tokens, riders)]
        if ahead is None or not self._was_added(ahead, waiting):
            return self._joint.forwards(sequences, tokens)
        is_alone = len(ahead.rows.sequences) == 1
        for one in sequences:
            one.accept_ahead(ahead.rows.logits if is_alone else None)
        return [] if is_alone else [ahead.rows]

    def _was_added(self, ahead: _Ahead, waiting: Listed[tuple[Sequence, int]]) -> bool:
        """Return whether a forward that was launched ahead is of all of these, and is there."""
        return self._joint.last is ahead.rows and all(
            one.ahead is ahead.rows and ahead.tokens[one] == token_id for one, token_id in waiting
        )

    @property
    def _readback(self) -> Readback | None:
        """What brings tokens to the host that the device need not wait for, where it can."""
        found = self._runner.readback
        return found if isinstance(found, Readback) else None

    def _can_go_ahead(self, drawn: Listed[Sequence], of_all: Collection[Sequence]) -> bool:
        """Return whether the forward after these tokens can be launched: all are drawn, and fit."""
        return (
            self._readback is not None
            and self._runner.window is None  # whose rows wait for the tokens
            and 0 < len(drawn) == len(of_all) <= self._joint.most
            and all(one.room for one in drawn)
        )

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

    def _gather(self, drawn: Listed[Drawn]) -> Drawn:
        """All tokens that were drawn, in one tensor."""
        if len(drawn) == 1:
            return drawn[0]
        place = 0
        for group, tokens in drawn:
            copy(tokens, view(self._tokens, (len(group),), 4 * place))
            place += len(group)
        return [one for group, _ in drawn for one in group], view(self._tokens, (place,))

    def _read(self, drawn: tvm_ffi.Tensor, count: int) -> list[int]:
        """Wait for the first so many tokens, once."""
        if not count:
            return []
        if self._readback is not None:
            return self._readback.wait_all(count)
        return [int(token) for token in self._device.read(drawn)[:count]]

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
