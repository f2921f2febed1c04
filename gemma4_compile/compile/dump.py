"""Files of `--dump-ir`: the module after each phase, and the sources of the kernels."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile.package.output_directory import write_errors
from gemma4_compile.system import regular_files


class Dump:
    """Files of `--dump-ir` in a directory, which is made when the first one is written."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0

    def phase(self, name: str, text: str) -> None:
        """Write the module's text after a phase into a numbered file."""
        self._write(self._directory / f"{self._count:02d}-{name}.py", text)
        self._count += 1

    def kernel(self, file: str, text: str) -> None:
        """Write a kernel's source into `kernels/`."""
        self._write(self._directory / "kernels" / file, text)

    def _write(self, path: Path, text: str) -> None:
        with write_errors(path, "--dump-ir"):
            path.parent.mkdir(parents=True, exist_ok=True)
            regular_files.write_new(path, text.encode("utf-8"))
