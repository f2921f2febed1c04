"""A package's steps by each of the two that can drive its device, in processes of their own.

One that takes its process down, or never ends, is part of what is found.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from gemma4_compile.runtime.device import metal_launcher
from gemma4_compile.runtime.engine.engine import Engine
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.system.log_lines import process_noted
from gemma4_compile.system.processes import signal_name

WORDS = ("tvm", "own")
"""Values of `GEMMA4_METAL`, in the order in which they are tried."""
STEPS = 24
_PROMPT = 16
_MOST_SECONDS = 900
_MODULE = "gemma4_compile.runtime.check.launcher_check"
_SHOWN_LINES = 12
_COMMAND = (sys.executable, "-m", _MODULE)


@dataclass(frozen=True)
class Steps:
    """What steps gave and took.

    Attributes
    ----------
    loaded : seconds
    tokens : the greedy answer to random tokens
    step : seconds of a greedy step with its read, the median
    drawn : the same of a step whose token the device draws
    counts : of what the launcher did for the drawn ones, by name; nothing by TVM's runtime
    """

    loaded: float
    tokens: list[int]
    step: float
    drawn: float
    counts: dict[str, int] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """For a report."""
        counted = ", ".join(f"{name}: {count}" for name, count in self.counts.items())
        return [
            f"loaded in {self.loaded:.2f} s",
            f"a step: {1e3 * self.step:.2f} ms, with a drawn token: {1e3 * self.drawn:.2f} ms",
            f"greedy tokens: {self.tokens}",
            *([f"of {len(self.tokens)} drawn tokens: {counted}"] if counted else []),
        ]


def measure(package: Package) -> Steps:
    """Run steps in this process, as its environment has the device driven."""
    begin = time.perf_counter()
    engine = Engine(package)
    loaded = time.perf_counter() - begin
    rng = np.random.default_rng(0)
    logits = engine.prefill(rng.integers(engine.vocab_size, size=_PROMPT).tolist())
    count = min(STEPS, (engine.context_length - _PROMPT) // 2)
    tokens, steps = [], []
    for _ in range(count):
        tokens.append(int(np.argmax(logits)))
        begin = time.perf_counter()
        logits = engine.decode(tokens[-1])
        steps.append(time.perf_counter() - begin)
    launched = metal_launcher.is_installed()
    before = metal_launcher.counts() if launched else {}
    drawn, times = engine.sampling.sampled(1.0, 0.9, lambda: float(rng.random())), []
    for _ in range(count):
        begin = time.perf_counter()
        next(drawn)
        times.append(time.perf_counter() - begin)
    after = metal_launcher.counts() if launched else {}
    drawn.close()
    return Steps(
        loaded,
        tokens,
        statistics.median(steps),
        statistics.median(times),
        {name: after[name] - before[name] for name in after},
    )


def measured_apart(
    directory: Path,
    named: str | None,
    word: str,
    *,
    command: Sequence[str] = _COMMAND,
    most_seconds: float = _MOST_SECONDS,
) -> Steps | list[str]:
    """`measure` in a process of its own, or lines that say what became of that.

    Parameters
    ----------
    named : the package's library or device, by default the best that runs here
    word : what drives Metal
    """
    environment: Mapping[str, str] = {**os.environ, metal_launcher.SWITCH: word}
    try:
        with process_noted(_MODULE):
            done = subprocess.run(
                [*command, str(directory), *([named] if named else [])],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=most_seconds,
            )
    except subprocess.TimeoutExpired:
        return [f"not done after {most_seconds:.0f} s"]
    except OSError as error:
        return [f"no process: {error.strerror}"]
    if done.returncode == 0:
        try:
            return Steps(**json.loads(done.stdout))
        except (ValueError, TypeError):
            return [f"its answer is none: {done.stdout[:200]!r}"]
    how = f"exit code {done.returncode}"
    if done.returncode < 0:
        how = f"signal {signal_name(-done.returncode)}"
    return [f"ended with {how}:", *done.stderr.strip().splitlines()[-_SHOWN_LINES:]]


def comparison(found: Mapping[str, Steps | list[str]]) -> list[str]:
    """Lines on what each of WORDS gave, and on how the two differ."""
    lines = []
    for word, result in found.items():
        told = result.lines() if isinstance(result, Steps) else result
        lines += [f"{metal_launcher.SWITCH}={word}: {line}" for line in told]
    both = [result for result in found.values() if isinstance(result, Steps)]
    if len(both) == len(WORDS):
        same = both[0].tokens == both[1].tokens
        lines.append("both give the same tokens" if same else "they give different tokens")
    return lines


def main(arguments: Sequence[str]) -> None:
    """Measure the package of a directory, and print what is found as JSON."""
    directory, *named = arguments
    package = Package.open(Path(directory), device=named[0] if named else None)
    print(json.dumps(asdict(measure(package))))


if __name__ == "__main__":
    main(sys.argv[1:])
