"""Time by kernel on this device: a prompt and the tokens after it, and where their time goes."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.check.kernel_times import KernelTime, StepTimes
from gemma4_compile.runtime.device.kernel_clock import kernel_clock
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.engine.model_runner import ModelRunner
from gemma4_compile.runtime.library.steps import PlainSteps
from gemma4_compile.runtime.package.integrity import ByteCount
from gemma4_compile.runtime.package.package import Package

PROMPT_TOKENS = 128
DECODED = 32  # tokens
REPEATS = 3  # of the prompt
_SEED = 1
_SHORTEST = 4  # tokens that a context must have room for
_Call = Callable[[ModelRunner], None]


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


def profile(
    package: Package,
    *,
    context_length: int | None = None,
    progress: ByteCount | None = None,
    experts: float | None = None,
    ple: str | None = None,
    expert_cache: int | None = None,
) -> Iterator[StepProfile]:
    """Profile the prompt, then a decoded token. CUDA graphs are off: a graph is one launch.

    Random tokens do as well as any: see `bench.measure`. Parameters as of `Engine`.

    Raises
    ------
    UsageError
        If the context is too short, or longer than the compiled one.
    """
    chat = package.chat_config
    length = context_length or chat.context_window_size
    if length < _SHORTEST:
        raise UsageError(
            f"a context of {length} tokens is too short to profile",
            hint=f"give --context-length {_SHORTEST} or more",
        )
    decoded = min(DECODED, length // 2)
    prompt = min(PROMPT_TOKENS, length - decoded, chat.prefill_chunk_size)
    engine = Engine(
        package,
        context_length=length,
        progress=progress,
        graphs=False,
        drafts=0,
        experts=experts,
        ple=ple,
        expert_cache=expert_cache,
    )
    model, device, plain = engine.model, engine.device, engine.runner
    described = json.loads(model.library.metadata())
    names = [one["name"] for one in described["params"]]
    weights = {one.data_ptr(): name for one, name in zip(model.params, names, strict=True)}
    ids = np.random.default_rng(_SEED).integers(chat.vocab_size, size=prompt).tolist()
    clock = kernel_clock(device)

    def watched(times: StepTimes) -> ModelRunner:
        library = model.library.watched(times)
        steps = PlainSteps(library, device, model.kv.handle, model.params, model.vocab_size)
        return ModelRunner(replace(model, library=library), steps)

    def add_prompt(runner: ModelRunner) -> None:
        engine.clear()
        runner.forward(engine.sequence, ids)
        device.wait()

    def add_token(runner: ModelRunner) -> None:
        runner.forward_one(engine.sequence, ids[0])
        device.wait()

    def run(step: str, repeats: int, call: _Call, reset: Callable[[], None]) -> StepProfile:
        times = StepTimes(clock, described["kernels"], weights)
        runner = watched(times)
        reset()
        for _ in range(repeats):  # the first is left out
            call(runner)
            times.end_step()
        reset()
        walls = [_seconds(call, plain) for _ in range(repeats)][1:]
        return StepProfile(step, times.table(), statistics.median(walls), clock.how)

    yield run(f"a prompt of {prompt} tokens", REPEATS + 1, add_prompt, lambda: None)
    yield run(
        f"a token after {prompt}, of {decoded - 1} such",
        decoded,
        add_token,
        lambda: add_prompt(plain),
    )


def _seconds(call: _Call, runner: ModelRunner) -> float:
    begin = time.perf_counter()
    call(runner)
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
