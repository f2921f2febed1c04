"""The value of `--dump-ir`: which folder, and how much is written into it. Loads no compiler."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.options.process import path

EACH = "each"
"""In place of a folder, or before one and a colon: the module after every pass."""


@dataclass(frozen=True)
class DumpOption:
    """What `--dump-ir` asks for.

    Attributes
    ----------
    folder : where the files go; None: beside the package
    each : a file after every pass, in place of one after each phase
    """

    folder: Path | None = None
    each: bool = False

    def beside(self, output: Path) -> Path:
        """The folder of a run that writes `output`."""
        if self.folder is not None:
            return self.folder
        whole = Path(os.path.abspath(output))
        return whole.with_name(f"{whole.name}-ir")


def dump_option(text: str) -> DumpOption:
    """`DIR`, `each` or `each:DIR`; argparse's error for an empty name."""
    word, colon, folder = text.partition(":")
    if word != EACH:
        return DumpOption(path(text))
    if colon and not folder.strip():
        raise argparse.ArgumentTypeError(f"the folder after `{EACH}:` has no name")
    return DumpOption(Path(folder) if colon else None, each=True)
