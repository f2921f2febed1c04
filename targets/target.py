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
    """Write the model library of a built executable; raises TargetError."""

    def __call__(
        self,
        executable: relax.VMExecutable,
        output: Path,
        spec: TargetSpec,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """See the targets' own."""


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
    """

    limits: Mapping[str, TargetSpec]
    link: Link
    platform: Callable[[], Platform]
    run_by: str = "gemma4-chat"
    passes: Callable[[], tuple[Pass, ...]] = tuple
