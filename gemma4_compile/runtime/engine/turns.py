"""A step of several sequences, each with a sampler of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.device.device import Device, copy, view
from gemma4_compile.runtime.engine.device_sampling import DeviceSampling
from gemma4_compile.runtime.engine.joint import Joint
from gemma4_compile.runtime.engine.model_runner import ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.sampling.sampling import Sampler, TokenChooser


class Turns:
    """Adds a token to each of some sequences, and chooses the next one of each."""

    def __init__(self, device: Device, runner: ModelRunner, joint: Joint, most: int) -> None:
        """Take the model, for at most so many sequences."""
        self._device, self._runner, self._joint = device, runner, joint
        self._tokens = device.empty((most,), "int32")  # those that were drawn
        self._drawing: dict[int, DeviceSampling] = {}  # by slot

    def step(self, sequences: Collection[Sequence]) -> list[int]:
        """As `Engine.step`."""
        if len(set(sequences)) < len(sequences):
            raise UsageError("step: a sequence is named twice")
        samplers = [self._check(sequence) for sequence in sequences]
        waiting = [(one, one.chosen) for one in sequences if one.chosen is not None]
        self._joint.add([one for one, _ in waiting], [token for _, token in waiting])
        launched = [
            self._launch(sequence, sampler)
            for sequence, sampler in zip(sequences, samplers, strict=True)
        ]
        versions = [sequence.version for sequence in sequences]
        drawn = self._read([token for token in launched if token is not None])
        tokens = [
            self._choose(sequence, sampler) if token is None else next(drawn)
            for sequence, sampler, token in zip(sequences, samplers, launched, strict=True)
        ]
        if versions != [sequence.version for sequence in sequences]:
            raise _changed()
        # Of all or of none: who calls gets the tokens of all or of none.
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.chosen = token
        return tokens

    def _check(self, sequence: Sequence) -> TokenChooser:
        """The sampler; errors as of `Engine.step`."""
        sequence.check(0)
        if sequence.sampler is None:
            raise UsageError("step: a sequence has no sampler to choose its next token")
        if sequence.chosen is not None:
            self._runner.check(sequence, [sequence.chosen])
        elif not sequence.length:
            raise UsageError("step: a sequence has no tokens: add a prompt first")
        elif sequence.logits is None:
            raise UsageError(
                "step: a sequence has no logits of its last token, since tokens were taken back or "
                "a draw used them: add a token first"
            )
        return sequence.sampler

    def _launch(self, sequence: Sequence, sampler: TokenChooser) -> tvm_ffi.Tensor | None:
        """Launch the draw of one's token, int32 (1,), where the device draws it."""
        sampling = self._sampling(sequence)
        if not isinstance(sampler, Sampler) or not sampling.is_faster:
            return None
        options = sampler.device_options
        return None if options is None else sampling.launch(options, sampler.random())

    def _read(self, drawn: list[tvm_ffi.Tensor]) -> Iterator[int]:
        """Wait for all tokens that were drawn, once."""
        if len(drawn) < 2:
            return iter([int(self._device.read(token)[0]) for token in drawn])
        for place, token in enumerate(drawn):
            copy(token, view(self._tokens, (1,), 4 * place))
        return iter(self._device.read(self._tokens)[: len(drawn)].tolist())

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


def _changed() -> UsageError:
    return UsageError("step: a sampler changed a sequence of the step: change none before it ends")
