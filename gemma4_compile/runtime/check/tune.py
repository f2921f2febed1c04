"""`gemma4-chat DIR --tune`: which of a package's libraries is the fastest right one here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gemma4_compile.device_kinds import NATIVE_KINDS
from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import digest
from gemma4_compile.runtime.check.trials import Trials
from gemma4_compile.runtime.check.tune_run import (
    LOGITS_FILE,
    PROMPT_TOKENS,
    RESULT_FILE,
    Sizes,
    Timing,
)
from gemma4_compile.runtime.package.choice import (
    Candidate,
    candidates,
    no_native_hint,
    usable_devices,
)
from gemma4_compile.runtime.package.integrity import Check
from gemma4_compile.runtime.package.package import Package, check_whole, read_provenance
from gemma4_compile.runtime.package.tuned import choice_name, keep_choice
from gemma4_compile.runtime.sampling.sampling import Float32Array
from gemma4_compile.runtime.terminal.console import Console
from gemma4_compile.system.files import scratch_folder
from gemma4_compile.system.log_lines import process_noted
from gemma4_compile.system.processes import signal_name

_CHILD = "gemma4_compile.runtime.check.tune_run"
LIMIT_S = 240.0
"""Seconds that a library has: it is loaded, checked and measured."""
KERNELS_S = 20.0
"""Of these, for holding its kernels against their definitions, one after the other."""
REPLY_TOKENS = 128
"""Of the turn by whose time libraries are compared, after a prompt of PROMPT_TOKENS."""
MOST_DIVERGENCE = 0.5
"""Mean divergence of the next token's probabilities, in nats, from another right library's.

Rounding of vectors to int8 gives some hundredths, other weights or a wrong kernel several.
"""
_MORE_TILES = (
    "the package has one library for Macs; `gemma4-compile MODEL --target metal --libraries all "
    "--only library -o DIR`, with the options that it was compiled with, adds those with other "
    "tiles"
)


@dataclass(frozen=True)
class Tuned:
    """A library's row in the table.

    Attributes
    ----------
    device : its description; "" where there is none
    timing : None for a library that does not run here
    lacks : why it does not
    """

    name: str
    device: str
    timing: Timing | None = None
    lacks: str = ""
    chosen: bool = False


Attempt: TypeAlias = "Callable[[str], tuple[Timing, Float32Array | None]]"
"""Times a library by its name; returns its logits, too, if it came to that."""


def tune(
    directory: Path,
    check: Check,
    console: Console,
    *,
    sizes: Sizes | None = None,
    limit_s: float = LIMIT_S,
) -> list[Tuned]:
    """Time every library that runs here, and keep the fastest right one for later runs.

    What was kept before stays until all are timed. One that is ended goes on within a day: the
    libraries that it has timed are not timed again.

    Parameters
    ----------
    sizes : that the libraries are loaded with; one for which they cannot be is not chosen

    Raises
    ------
    ArtifactError
        If the package is damaged or an encoder's, or none of its libraries runs here and computes
        right.
    """
    provenance = read_provenance(directory)
    check_whole(directory, provenance)
    tried = list(candidates(directory, provenance))
    devices = usable_devices(tried)
    if not devices:
        why = "; ".join(f"`{one.library.name}`: {one.lacks}" for one in tried)
        raise ArtifactError(
            f"`{directory}` has no library to time on this machine" + (f": {why}" if why else ""),
            hint=no_native_hint(provenance),
        )
    with console.checking(directory) as progress:  # what the libraries share, once for all
        package = Package.open(directory, check=check, progress=progress, drafter=False)
    package.check_replies()

    loaded = sizes or Sizes()
    # Answers are the weights', which may have been made anew since for the same libraries.
    tuning = f"{choice_name(directory, provenance, devices)} {digest(dict(provenance.files))}"
    trials = Trials(tuning, loaded)

    def attempt(name: str) -> tuple[Timing, Float32Array | None]:
        found = trials.find(name)
        if found is not None:
            console.note(f"`{name}` was timed before: the last --tune was ended")
            return found
        console.note(f"timing `{name}` ({devices[name]}), at most {limit_s:.0f} s")
        timing, logits = _attempt(directory, name, check, loaded, limit_s)
        if not timing.problem and logits is not None:
            trials.keep(name, timing, logits)
        return timing, logits

    results = compare(tried, devices, attempt)
    for name in devices:
        trials.forget(name)
    chosen = next((one.name for one in results if one.chosen), None)
    if chosen is None:
        raise ArtifactError(
            "no library computes right here: "
            + "; ".join(f"`{one.name}`: {one.timing.problem}" for one in results if one.timing),
            hint=f"write down what is wrong: gemma4-chat {directory} --diagnose",
        )
    keep_choice(directory, provenance, devices, chosen)
    here = [one for one in provenance.libraries if one.name in devices]
    if [NATIVE_KINDS[one.device].is_of_macs for one in here].count(True) == 1:
        console.note(_MORE_TILES)
    return results


def compare(tried: Sequence[Candidate], devices: dict[str, str], attempt: Attempt) -> list[Tuned]:
    """Time the libraries that run here, hold their answers together, and choose one.

    Parameters
    ----------
    devices : descriptions of what the libraries that run here run on, by their names
    """
    results: list[Tuned] = []
    logits: dict[str, Float32Array] = {}
    for one in tried:
        name = one.library.name
        if name not in devices:
            results.append(Tuned(name, "", lacks=one.lacks))
            continue
        timing, rows = attempt(name)
        if not timing.problem and (rows is None or not np.isfinite(rows).all()):
            timing = replace(timing, problem="its logits are no numbers")
        if not timing.problem and rows is not None:
            logits[name] = rows
        results.append(Tuned(name, devices[name], timing))
    # Vectors that are not rounded say what is right; among them the processor's code is plainest.
    plainest = [
        one.library.name
        for one in sorted(
            tried,
            key=lambda one: (
                one.library.activations != "float",
                not NATIVE_KINDS[one.library.device].is_host,
            ),
        )
        if one.library.name in logits
    ]
    for index, result in enumerate(results):
        if result.timing is not None and result.name in logits:
            away = divergence(logits[plainest[0]], logits[result.name])
            if away > MOST_DIVERGENCE:
                problem = f"it answers otherwise than `{plainest[0]}` ({away:.2g} nats away)"
                results[index] = replace(result, timing=replace(result.timing, problem=problem))
    right = [found for found in results if found.timing and not found.timing.problem]
    fastest = min(right, key=_turn_s, default=None)
    return [replace(result, chosen=result is fastest) for result in results]


def _turn_s(one: Tuned) -> float:
    assert one.timing is not None, "of those that ran"
    prefill, decode = one.timing.prefill_tokens_per_s, one.timing.decode_tokens_per_s
    return PROMPT_TOKENS / prefill + REPLY_TOKENS / decode


def divergence(expected: Float32Array, found: Float32Array) -> float:
    """Mean Kullback-Leibler divergence of rows of logits, in nats."""
    if expected.shape != found.shape:
        return float("inf")
    logs = []
    for logits in (expected, found):
        shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
        logs.append(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
    return float((np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1).mean())


def _attempt(
    directory: Path, name: str, check: Check, sizes: Sizes, limit_s: float
) -> tuple[Timing, Float32Array | None]:
    """Time a library in a process of its own, which is ended whatever happens here."""
    once = Check.OFF if check is Check.OFF else Check.ONCE
    with scratch_folder(prefix="gemma4-") as folder:
        command = [sys.executable, "-m", _CHILD, str(directory.resolve()), name, once.value]
        command += [sizes.to_json(), str(KERNELS_S), folder]
        with (
            process_noted(f"{_CHILD}, library `{name}`"),
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child,
        ):
            try:
                _, said = child.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                return Timing(f"it takes longer than {limit_s:.0f} s"), None
            finally:
                child.kill()
        try:
            timing = Timing(**json.loads(Path(folder, RESULT_FILE).read_text("utf-8")))
        except FileNotFoundError:
            return Timing(f"it ended with {_ending(child.returncode, said)}"), None
        path = Path(folder, LOGITS_FILE)
        return timing, np.load(path, allow_pickle=False) if path.exists() else None


def _ending(status: int, said: bytes) -> str:
    """What is known of a process that left no result."""
    if status < 0:
        return f"signal {signal_name(-status)}"
    last = said.decode("utf-8", errors="replace").strip().splitlines()
    return f"status {status}" + (f": {last[-1]}" if last else "")


def tuning_table(results: Sequence[Tuned]) -> str:
    """The results for people."""
    width = max(len("library"), *(len(one.name) for one in results))
    device = max(len("device"), *(len(one.device) for one in results))
    lines = [
        f"{'library':<{width}}   {'device':<{device}}   prefill tok/s   decode tok/s",
    ]
    for one in results:
        speeds = (f"{'-':>13}", f"{'-':>12}")
        note = one.lacks
        if one.timing is not None:
            note = one.timing.problem
            if not note:
                speeds = (
                    f"{one.timing.prefill_tokens_per_s:>13,.1f}",
                    f"{one.timing.decode_tokens_per_s:>12,.1f}",
                )
        row = f"{one.name:<{width}}   {one.device:<{device}}   {'   '.join(speeds)}"
        lines.append(f"{row}   {'chosen' if one.chosen else note}".rstrip())
    return "\n".join(lines)
