"""The process that compiles libraries beside a test which compiles `unoptimised`."""

from __future__ import annotations

from gemma4_compile.compile import library_worker
from gemma4_compile.system.loading import without_torch

with without_torch():
    from tests.packages import unoptimised

if __name__ == "__main__":
    with unoptimised():
        library_worker.main()
