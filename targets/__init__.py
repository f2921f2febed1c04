"""Where a model library runs: TARGETS by name, each with its profiles of limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_compile.errors import UsageError
from gemma4_compile.targets import cpu, webgpu
from gemma4_compile.targets.spec import DeviceType, TargetSpec

__all__ = ["TARGETS", "DeviceType", "Target", "TargetSpec", "target_spec"]


@dataclass(frozen=True)
class Target:
    """A target and its profiles by name; ``default`` always exists."""

    profiles: Mapping[str, TargetSpec]


TARGETS: Mapping[str, Target] = {"webgpu": Target(webgpu.PROFILES), "cpu": Target(cpu.PROFILES)}


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
