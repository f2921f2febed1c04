"""Targets of a model library: TARGETS by name, each with its limits and its way to link."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tvm import relax

from gemma4_compile.errors import UsageError
from gemma4_compile.targets import cpu, cuda, metal, webgpu
from gemma4_compile.targets.linker.licences import licence_texts
from gemma4_compile.targets.linker.runtime_objects import Platform
from gemma4_compile.targets.spec import DeviceType, TargetSpec

__all__ = [
    "TARGETS",
    "DeviceType",
    "Target",
    "TargetSpec",
    "library_licences",
    "link",
    "target_spec",
]


class Link(Protocol):
    """Write the model library of a built executable; raises TargetError."""

    def __call__(
        self,
        executable: relax.VMExecutable,
        output: Path,
        spec: TargetSpec,
        progress: Callable[[str], None] | None = None,
    ) -> None: ...


@dataclass(frozen=True)
class Target:
    """A target: its limits by name (``default`` always exists), its linker and its platform."""

    limits: Mapping[str, TargetSpec]
    link: Link
    platform: Callable[[], Platform]


TARGETS: Mapping[str, Target] = {
    "webgpu": Target(webgpu.LIMITS, webgpu.link, lambda: webgpu.WASM),
    "metal": Target(metal.LIMITS, metal.link, lambda: metal.MACOS),
    "cuda": Target(cuda.LIMITS, cuda.link, cpu.this_machine),
    "cpu": Target(cpu.LIMITS, cpu.link, cpu.this_machine),
}


def target_spec(name: str, limits: str = "default") -> TargetSpec:
    """Return the spec of a target under named limits; UsageError names unknown ones."""
    target = TARGETS.get(name)
    if target is None:
        raise UsageError(f"unknown target `{name}`", hint=f"known targets: {', '.join(TARGETS)}")
    spec = target.limits.get(limits)
    if spec is None:
        raise UsageError(
            f"target `{name}` has no limits `{limits}`",
            hint=f"limits of `{name}`: {', '.join(target.limits)}",
        )
    return spec


def link(
    executable: relax.VMExecutable,
    output: Path,
    spec: TargetSpec,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Link a built executable into a model library for the target that ``spec`` names."""
    TARGETS[spec.name].link(executable, output, spec, progress)


def library_licences(spec: TargetSpec, library: str) -> dict[str, str]:
    """Return the texts that go with a linked library, by the names of their files; TargetError."""
    return licence_texts(TARGETS[spec.name].platform(), library)
