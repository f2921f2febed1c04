"""What a folder is that holds no package, and the way from there to one."""

from __future__ import annotations

from pathlib import Path

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.system.regular_files import gguf_in

_CHECKPOINT, _ADAPTER = "config.json", "adapter_config.json"


def no_package(directory: Path) -> ArtifactError:
    """The error for a path without a package, by what is there instead."""
    what, hint = (
        f"there is no directory `{directory}`",
        "give the directory that gemma4-compile made (its -o); gemma4-chat and gemma4-serve take "
        "the id of a package on the hub, too (owner/name)",
    )
    gguf = gguf_in(directory) if directory.exists() else None
    if gguf is not None:
        what = f"`{gguf}` is a GGUF file, for llama.cpp, and no package"
        hint = "compile the original checkpoint: gemma4-compile MODEL --target cpu -o DIR"
    elif directory.is_file():
        what = f"`{directory}` is a file, and a package is a directory"
        if (directory.parent / abi.PROVENANCE_FILE).exists():
            hint = f"give the directory that it is in: {directory.parent}"
    elif (directory / _ADAPTER).exists() and not (directory / _CHECKPOINT).exists():
        what = f"`{directory}` is an adapter (`{_ADAPTER}`), not a package"
        hint = (
            "compile it with the model that it was trained on: gemma4-compile MODEL --adapter "
            f"{directory} --target cpu -o DIR"
        )
    elif (directory / _CHECKPOINT).exists():
        what = f"`{directory}` is a checkpoint, not a package"
        hint = f"compile it first: gemma4-compile {directory} --target cpu -o DIR"
    elif directory.exists():
        what = f"`{directory}` is no package: `{abi.PROVENANCE_FILE}` is missing"
    return ArtifactError(what, hint=hint)
