"""Runs cases on the fake CUDA, each in a fork: `python -m tests.cuda.forks`.

To load TVM takes longer than any case, so it is loaded once. A fork is safe here: nothing has begun
a thread or asked CUDA for anything before it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from gemma4_compile.system.loading import without_torch

with without_torch():
    from tests.cuda import cases

PATIENCE_S = 120


def main() -> None:
    """Read jobs, a line of JSON each; answer each with its exit status."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would lack threads"
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            _run(job)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(job: dict[str, Any]) -> None:
    signal.alarm(PATIENCE_S)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT)
    for output in (1, 2):
        os.dup2(log, output)
    os.environ.update(job["environment"])
    status = 1
    try:
        getattr(cases, job["case"])(Path(job["package"]), *job["arguments"])
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
