"""Targets of a model library: TARGETS by name, each with its limits and its way to link.

A target is a module of this folder with a `TARGET`, and its entry in `targets.json`, which the
options read, too, without loading the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path

from tvm import relax

from gemma4_compile.errors import UsageError
from gemma4_compile.targets.linker.licences import licence_texts
from gemma4_compile.targets.spec import TargetSpec
from gemma4_compile.targets.target import Target

__all__ = [
    "TARGETS",
    "Target",
    "TargetSpec",
    "check_tools",
    "library_licences",
    "link",
    "strictest",
    "target_spec",
]

TARGETS: dict[str, Target] = {
    name: import_module(f"{__name__}.{name}").TARGET
    for name in json.loads(Path(__file__).with_name("targets.json").read_text("utf-8"))
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


def check_tools(names: Iterable[str]) -> None:
    """Raise TargetError if this machine cannot make libraries for a target, or lacks a tool."""
    for name in dict.fromkeys(names):
        TARGETS[name].platform()
        TARGETS[name].check()


def library_licences(libraries: Mapping[str, str]) -> dict[str, str]:
    """Return the texts that go with linked libraries, by the names of their files; TargetError.

    Parameters
    ----------
    libraries : names of their targets, by the libraries' files
    """
    platforms = [TARGETS[name].platform() for name in dict.fromkeys(libraries.values())]
    return licence_texts(platforms, tuple(libraries))


def strictest(specs: Iterable[TargetSpec]) -> TargetSpec:
    """The target that binds least: its splits of large tensors fit all of them."""
    return min(
        specs, key=lambda spec: (spec.max_binding_bytes is None, spec.max_binding_bytes or 0)
    )
