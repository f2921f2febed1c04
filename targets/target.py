"""Target: everything that the compiler knows of a place to run on, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tvm import relax
from tvm.ir.transform import Pass

from gemma4_compile.targets.linker.runtime_objects import Platform
from gemma4_compile.targets.spec import TargetSpec


class Link(Protocol):
    """Turn a built executable into a model library, with the KV state in it.

    Parameters
    ----------
    executable : built for ``spec.tvm_target()``; with ``system_lib=True`` where the spec is static
    output : the library to write; its directory exists
    spec : the target that it was built for
    progress : is given what takes long (the first build on a machine)

    Raises
    ------
    TargetError
        If zig or another tool is missing or fails, or this machine or the library does not fit.
    """

    def __call__(
        self,
        executable: relax.VMExecutable,
        output: Path,
        spec: TargetSpec,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Write `output`."""


@dataclass(frozen=True)
class Target:
    """A target; its module has it as `TARGET`.

    Attributes
    ----------
    limits : its limits by name; ``default`` always exists
    link : makes the library
    platform : of the library's host code
    run_by : the program that a user starts with a package
    passes : makes the passes that its code generator needs before its own
    source : from the code generator's text of kernels to the text that the device gets
    check : raises TargetError where a tool is missing that only its libraries need
    """

    limits: Mapping[str, TargetSpec]
    link: Link
    platform: Callable[[], Platform]
    run_by: str = "gemma4-chat"
    passes: Callable[[], tuple[Pass, ...]] = tuple
    source: Callable[[str, TargetSpec], str] = lambda text, _: text
    check: Callable[[], object] = lambda: None
