"""Time by kernel on this device: a prompt and the tokens after it, and where their time goes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.check.kernel_times import KernelTime, StepTimes
from gemma4_compile.runtime.device.device import Device, view
from gemma4_compile.runtime.device.kernel_clock import kernel_clock
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.library.steps import Parameters
from gemma4_compile.runtime.package.integrity import ByteCount
from gemma4_compile.runtime.package.package import Package

PROMPT_TOKENS = 128
DECODED = 32  # tokens
REPEATS = 3  # of the prompt
_SEED = 1
_SHORTEST = 4  # tokens that a context must have room for


@dataclass(frozen=True)
class StepProfile:
    """Where the time of a step goes.

    Attributes
    ----------
    step : in words
    kernels : longest first
    wall_s : of a step without the profile, median
    how : the times were measured
    """

    step: str
    kernels: tuple[KernelTime, ...]
    wall_s: float
    how: str


class _Steps:
    """The model's forward calls over one state, in a virtual machine of the library."""

    def __init__(
        self, library: NativeLibrary, device: Device, state: KvState, params: Parameters
    ) -> None:
        self._embed: Callable[..., tvm_ffi.Tensor] = library.compiled_function(abi.EMBED)
        self._prefill: Forward = library.compiled_function(abi.PREFILL)
        self._decode: Forward = library.compiled_function(abi.DECODE)
        self._device, self._state, self._params = device, state, params

    def prefill(self, ids: tvm_ffi.Tensor, modalities: tvm_ffi.Tensor) -> None:
        """Add the tokens of a prompt, int32 (n,), to an empty state."""
        count = int(ids.shape[0])
        self._state.clear()
        self._state.begin(count)
        embedded = self._embed(ids, self._params)
        self._prefill(
            view(embedded, (1, *embedded.shape)),
            view(ids, (1, count)),
            view(modalities, (1, count)),
            self._state.handle,
            self._params,
        )
        self._state.end()
        self._device.wait()

    def decode(self, token: tvm_ffi.Tensor) -> None:
        """Add one token, int32 (1, 1)."""
        self._state.begin(1)
        self._decode(token, self._state.handle, self._params)
        self._state.end()
        self._device.wait()


def profile(
    package: Package, *, context_length: int | None = None, progress: ByteCount | None = None
) -> Iterator[StepProfile]:
    """Profile the prompt, then a decoded token. CUDA graphs are off: a graph is one launch.

    Random tokens do as well as any: see `bench.measure`.

    Raises
    ------
    UsageError
        If the context is too short.
    """
    chat = package.chat_config
    length = min(context_length or chat.context_window_size, chat.context_window_size)
    if length < _SHORTEST:
        raise UsageError(
            f"a context of {length} tokens is too short to profile",
            hint=f"give --context-length {_SHORTEST} or more",
        )
    decoded = min(DECODED, length // 2)
    prompt = min(PROMPT_TOKENS, length - decoded, chat.prefill_chunk_size)
    device = Device.open(package.device)
    library = NativeLibrary(package.library_path, device)
    metadata = str(library.compiled_function(abi.METADATA)())
    params = tvm_ffi.Array(package.load_parameters(metadata, device.place, progress))
    described = json.loads(metadata)
    names = [one["name"] for one in described["params"]]
    weights = {one.data_ptr(): name for one, name in zip(params, names, strict=True)}
    state = KvState(library, device.name, length, min(chat.prefill_chunk_size, length))
    ids = np.random.default_rng(_SEED).integers(chat.vocab_size, size=prompt).astype(np.int32)
    on_device = device.place(ids)
    text = device.place(np.full(prompt, abi.MODALITY_TEXT, np.int32))
    token = device.place(ids[:1].reshape(1, 1).copy())
    plain = _Steps(library, device, state, params)

    def run(
        step: str, repeats: int, call: Callable[[_Steps], None], reset: Callable[[], None]
    ) -> StepProfile:
        times = StepTimes(kernel_clock(device), described["kernels"], weights)
        watched = _Steps(library.watched(times), device, state, params)
        reset()
        for _ in range(repeats):  # the first is left out
            call(watched)
            times.end_step()
        reset()
        walls = [_seconds(call, plain) for _ in range(repeats)][1:]
        return StepProfile(step, times.table(), statistics.median(walls), kernel_clock(device).how)

    def filled() -> None:
        plain.prefill(on_device, text)

    yield run(
        f"a prompt of {prompt} tokens",
        REPEATS + 1,
        lambda steps: steps.prefill(on_device, text),
        lambda: None,
    )
    yield run(
        f"a token after {prompt}, of {decoded - 1} such",
        decoded,
        lambda steps: steps.decode(token),
        filled,
    )


def _seconds(call: Callable[[_Steps], None], steps: _Steps) -> float:
    begin = time.perf_counter()
    call(steps)
    return time.perf_counter() - begin


def profile_table(found: StepProfile) -> str:
    """A profile for people: the kernels, and their time beside that of the whole step."""
    total = sum(one.seconds for one in found.kernels)
    rows = [("kernel", "operator", "belongs to", "calls", "ms", "share", "GB/s")]
    for one in found.kernels:
        share = f"{100 * one.seconds / total:.1f} %" if total else "-"
        speed = "-"
        if one.nbytes is not None and one.seconds > 0:
            speed = f"{one.nbytes / one.seconds / 1e9:,.2f}"
        ms = f"{1e3 * one.seconds:.3f}"
        rows.append((one.kernel, one.operator, one.places, str(one.calls), ms, share, speed))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = 3  # columns of words
    lines = [
        "   ".join(
            text.ljust(width) if index < left else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    calls = sum(one.calls for one in found.kernels)
    return "\n".join(
        [
            f"{found.step} ({found.how})",
            *lines,
            f"{calls} launches take {1e3 * total:.3f} ms; the step without the profile takes "
            f"{1e3 * found.wall_s:.3f} ms",
        ]
    )
