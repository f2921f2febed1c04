"""Draws tokens on the device, so that what crosses to the host is their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tvm_ffi

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.engine.model_runner import ModelRunner
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.sampling.sampling import DrawOptions


class DeviceSampling:
    """The device's sampler, after the forwards of one sequence.

    Attributes
    ----------
    sequence : that one
    """

    def __init__(self, device: Device, runner: ModelRunner, sequence: Sequence) -> None:
        """Take a sequence."""
        self._device, self._runner, self.sequence = device, runner, sequence
        self._readback = runner.readback

    @property
    def is_faster(self) -> bool:
        """Return whether it is faster than to read logits and choose on the host."""
        return self._device.kind.draws

    def draw(self, logits: tvm_ffi.Tensor, temperature: float, top_p: float, uniform: float) -> int:
        """Draw a token.

        Parameters
        ----------
        logits : what the last forward returned
        temperature, top_p : above 0
        uniform : a random number in [0, 1), which decides
        """
        return int(self._device.read(self._launch(logits, temperature, top_p, uniform))[0])

    def draw_last(self, options: DrawOptions, uniform: float) -> int:
        """Draw from the logits of the last forward; UsageError if there are none."""
        return self.draw(self._logits(), *options, uniform)

    def sampled(
        self,
        temperature: float,
        top_p: float,
        random: Callable[[], float],
        token_id: int | None = None,
    ) -> DrawnTokens:
        """Draw tokens, each from the logits after the one before.

        Parameters
        ----------
        temperature, top_p : above 0
        random : numbers in [0, 1); one is taken for each token
        token_id : is added first; by default the logits of the last forward begin
        """
        return DrawnTokens(self, (temperature, top_p), random, token_id)

    def launch(self, options: DrawOptions, uniform: float) -> tvm_ffi.Tensor:
        """Launch a draw from the logits of the last forward; the token, int32 (1,)."""
        return self._launch(self._logits(), *options, uniform)

    def step_ahead(self, drawn: tvm_ffi.Tensor) -> bool:
        """Launch the step after a token that is not read yet; False where that does not pay."""
        if self._readback is None:
            return False
        self._readback.queue(drawn)
        runner, sequence = self._runner, self.sequence
        if runner.window is not None or not sequence.room:  # its row waits for the token
            return False
        runner.step(sequence, runner.ids.write_from(drawn, (1, 1)))
        return True

    def read(self, drawn: tvm_ffi.Tensor) -> int:
        """Wait for the token of the last `launch`, and `step_ahead`, but not for that step."""
        return int(self._readback.wait() if self._readback else self._device.read(drawn)[0])

    def add(self, token_id: int) -> None:
        """Add a token that was drawn; ContextFullError if it does not fit."""
        self._runner.forward_one(self.sequence, token_id)

    def end(self, *, ahead: bool) -> None:
        """Note that the last logits were drawn from; take back a step that was launched `ahead`."""
        if ahead:
            self.sequence.pop(1)
        self.sequence.logits = None

    def _logits(self) -> tvm_ffi.Tensor:
        logits = self._runner.last_logits(self.sequence)
        if logits is None:
            raise UsageError("there are no logits to draw from: add a token first")
        return logits

    def _launch(
        self, logits: tvm_ffi.Tensor, temperature: float, top_p: float, uniform: float
    ) -> tvm_ffi.Tensor:
        slot = self.sequence.slot
        feeds, values = self._runner.draw_numbers(slot), (temperature, uniform, top_p)
        written = (feed.write([value]) for feed, value in zip(feeds, values, strict=True))
        return self._runner.steps.draw(logits, *written, slot=slot)


class DrawnTokens(Iterator[int]):
    """Tokens drawn one after the other, without end; each is added once the next is asked for.

    On CUDA the step after a token is launched before the host has the token; what it adds
    is taken back by `close`, which is to be called before anything else is done with the engine.
    ContextFullError if the token that was given last does not fit, and another is asked for.
    """

    def __init__(
        self,
        sampling: DeviceSampling,
        options: DrawOptions,
        random: Callable[[], float],
        token_id: int | None,
    ) -> None:
        self._sampling, self._options, self._random = sampling, options, random
        self._last = token_id  # None after an error: then nothing is known of the state
        self._ahead = False  # the last token is in the state

    def __next__(self) -> int:
        """The next token."""
        last, self._last = self._last, None
        if last is not None and not self._ahead:
            self._sampling.add(last)
        drawn = self._sampling.launch(self._options, self._random())
        self._ahead = self._sampling.step_ahead(drawn)
        self._last = self._sampling.read(drawn)
        return self._last

    def close(self) -> None:
        """End the sequence with the token before the one that was given last."""
        if self._last is not None:
            self._last = None
            self._sampling.end(ahead=self._ahead)
