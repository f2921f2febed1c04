"""`gemma4-compile`, and its process for libraries, with a linker that does not come to an end.

Every library that is begun notes its process and its linker in the folder that `NOTES` names. The
linker ends well when it is asked to (SIGTERM).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from gemma4_compile.system.loading import without_torch

with without_torch():
    from gemma4_compile.cli import compile as cli
    from gemma4_compile.compile import library_build, library_processes, library_worker
    from gemma4_compile.compile.library_build import LibraryJob
    from gemma4_compile.targets.linker import zig

NOTES = "GEMMA4_TEST_NOTES"
LINKER = """
trap 'kill $!; exit 0' TERM
sleep 600 &
echo $PPID $$ > "$0.part"
mv "$0.part" "$0"
wait
"""


def make_library(job: LibraryJob, reporter: object = None) -> None:
    """Write half of a library, and link."""
    del reporter
    job.path.write_bytes(b"half")
    note = Path(os.environ[NOTES], job.path.name)
    zig.run(["-c", LINKER, str(note)], job.path.parent, job.path.parent)


def main() -> int:
    """Run the command with arguments, the process that it starts without."""
    shell = shutil.which("sh")
    assert shell, "this machine has no `sh`"
    zig.find_zig = lambda: Path(shell)
    library_build.make_library = make_library  # type: ignore[assignment]
    library_processes.processes = lambda libraries: min(libraries, 2)
    library_processes.WORKER = "tests.endless_libraries"
    if sys.argv[1:]:
        return cli.main(sys.argv[1:])
    library_worker.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
