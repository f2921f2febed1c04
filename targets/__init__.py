"""Where a model library runs: TARGETS by name, each with its limits and its way to link."""

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
    """A target: its profiles by name (``default`` always exists), its linker and its platform."""

    profiles: Mapping[str, TargetSpec]
    link: Link
    platform: Callable[[], Platform]


TARGETS: Mapping[str, Target] = {
    "webgpu": Target(webgpu.PROFILES, webgpu.link, lambda: webgpu.WASM),
    "metal": Target(metal.PROFILES, metal.link, lambda: metal.MACOS),
    "cuda": Target(cuda.PROFILES, cuda.link, cpu.this_machine),
    "cpu": Target(cpu.PROFILES, cpu.link, cpu.this_machine),
}


def target_spec(name: str, profile: str = "default") -> TargetSpec:
    """Return the spec of a target under a profile of limits; UsageError names unknown ones."""
    target = TARGETS.get(name)
    if target is None:
        raise UsageError(f"unknown target `{name}`", hint=f"known targets: {', '.join(TARGETS)}")
    spec = target.profiles.get(profile)
    if spec is None:
        raise UsageError(
            f"target `{name}` has no limits profile `{profile}`",
            hint=f"profiles of `{name}`: {', '.join(target.profiles)}",
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
