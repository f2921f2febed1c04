"""Runs conversions in processes of their own and disturbs them: `python -m tests.e2e.fault_runner`.

Everything is imported once; each run is a fork. A line of JSON on stdin is a job: {"arguments",
"count", "signal", "delay_s", "file_bytes"}; its answer is a line with the exit statuses (negative:
the signal that ended it) and the seconds of the longest run. A child that hangs ends the runner.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from gemma4_compile.system.loading import without_torch

with without_torch():
    from gemma4_compile.cli import compile as cli
    from gemma4_compile.compile import pipeline

PATIENCE_S = 120.0
SHARD_BYTES = 1 << 14  # so that a small model has many shards, and a run many states


def run_child(arguments: Sequence[str], file_bytes: int | None) -> None:
    """Run the command line in this process, which ends with it."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    if file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    os._exit(cli.main(arguments))


def wait(child: int, end: float) -> int:
    """Return how a child ended; one that has not by then is killed, and with it the runner."""
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            sys.exit(f"fault_runner: process {child} was not done after {PATIENCE_S} s")
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(found[1])


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Start the processes, send the signal when its time has come, wait for all."""
    begin = time.monotonic()
    children = []
    for _ in range(job.get("count", 1)):
        child = os.fork()
        if not child:
            run_child(job["arguments"], job.get("file_bytes"))
        children.append(child)
    if "signal" in job:
        time.sleep(job["delay_s"])
        for child in children:
            os.kill(child, job["signal"])
    statuses = [wait(child, begin + PATIENCE_S) for child in children]
    return {"statuses": statuses, "seconds": time.monotonic() - begin}


def main() -> None:
    """Answer jobs until stdin ends."""
    vars(pipeline)["SHARD_BYTES"] = SHARD_BYTES
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
