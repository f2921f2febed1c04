"""Which libraries a command line makes: its targets, --libraries, or one by --limits.

The registries are read as files, without the compiler, which takes seconds to load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.options.process import check_known

ALL = "all"
DEFAULT_LIMITS = "default"
NAMED, EXPERIMENT = "named", "experiment"
"""Entries of libraries that are made only where they are named, or all are; only where they are."""


def registered(package: str, file: str) -> dict[str, dict[str, str]]:
    """The file of a registry, in a package that is not loaded for it."""
    found = find_spec(f"gemma4_compile.{package}")
    assert found is not None, f"{package} is a part of this program"
    assert found.origin is not None, f"{package} is a package with an `__init__`"
    entries: dict[str, dict[str, str]] = json.loads(
        Path(found.origin).with_name(file).read_text("utf-8")
    )
    return entries


LIMITS = registered("targets", "targets.json")
"""Names of limits by target, and of each what it is for, where the name does not say it."""
LIBRARIES = registered("targets", "libraries.json")
"""Forms of a library by name, each with its target and what it is for."""


def more_limits() -> str:
    """The limits that targets have besides the default, as part of a help text."""
    return "; ".join(
        f"{target} also has "
        + ", ".join(f"{name} ({use})" if use else name for name, use in others.items())
        for target, limits in LIMITS.items()
        if (others := {name: limits[name] for name in limits if name != DEFAULT_LIMITS})
    )


def libraries_help() -> str:
    """The help text of --libraries."""
    named = ", ".join(
        f"{name} ({entry['use']})" for name, entry in LIBRARIES.items() if "use" in entry
    )
    more = ", ".join(
        f"{name} ({entry[NAMED]})" for name, entry in LIBRARIES.items() if NAMED in entry
    )
    experiments = ", ".join(
        f"{name} ({entry[EXPERIMENT]})" for name, entry in LIBRARIES.items() if EXPERIMENT in entry
    )
    return (
        f"fewer libraries for browsers, with commas (default: each of the targets' own): {named}; "
        f"experiments, by name alone: {experiments}; or more for metal, among which gemma4-chat "
        f"--tune chooses on a Mac: {more}; `{ALL}` makes these beside the default's"
    )


def targets(text: str) -> tuple[str, ...]:
    """The names in the list of targets; UsageError for one that is none, or is there twice."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in LIMITS:
            raise UsageError(f"unknown target `{name}`", hint=f"known targets: {', '.join(LIMITS)}")
        if names.count(name) > 1:
            raise UsageError(f"--target: `{name}` is given twice", hint="give it once")
    return names


def library_names(text: str) -> tuple[str, ...]:
    """The names in a list of libraries; UsageError for one that is none."""
    names = tuple(name.strip() for name in text.split(","))
    if names == (ALL,):
        return names
    for name in names:
        alone = f"; `{ALL}` alone is all of them"
        check_known("--libraries: unknown library", name, LIBRARIES, alone)
    return names


def float16_forms() -> tuple[str, ...]:
    """How libraries take a recipe's float16."""
    return tuple(dict.fromkeys(one["float16"] for one in LIBRARIES.values()))


def float16_form(text: str) -> str:
    """The value of --float16; UsageError for none."""
    check_known("--float16: unknown form", text, float16_forms())
    return text


def check_limits(limits: str | None, named: Sequence[str]) -> None:
    """Raise UsageError for limits that one of the targets does not have."""
    for target in named:
        if limits is not None and limits not in LIMITS[target]:
            raise UsageError(
                f"target `{target}` has no limits `{limits}`",
                hint=f"limits of `{target}`: {', '.join(LIMITS[target])}",
            )


def check_float16(float16: str | None, target: str) -> None:
    """Raise UsageError for a form of float16 that a target has no kernels for."""
    having = {one["target"] for one in LIBRARIES.values() if float16 in (None, one["float16"])}
    if target not in having:
        raise UsageError(
            f"--float16 {float16}: target `{target}` has no such library",
            hint=f"these have: {', '.join(sorted(having))}; leave --float16 out",
        )


def check_one(option: str, named: Sequence[str], asked: Sequence[str]) -> None:
    """Raise UsageError where an option describes the only library, and others are named."""
    if asked:
        raise UsageError(
            f"{option} makes one library, and --libraries names some",
            hint=f"leave one of them out; --libraries {ALL} makes all",
        )
    if named[1:]:
        raise UsageError(
            f"{option} makes one library, and {len(named)} targets are named",
            hint="choose among those of the targets with --libraries",
        )


def libraries_of(named: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Names of the libraries that are made of targets, the first target's first.

    UsageError for one of those that are asked for that is of another target.
    """
    of_targets = [
        name for target in named for name, one in LIBRARIES.items() if one["target"] == target
    ]
    if not asked or ALL in asked:
        left_out = (EXPERIMENT,) if asked else (EXPERIMENT, NAMED)
        return tuple(
            name for name in of_targets if not any(key in LIBRARIES[name] for key in left_out)
        )
    for name in asked:
        if name not in of_targets:
            target = LIBRARIES[name]["target"]
            raise UsageError(
                f"--libraries: `{name}` is a library for {target}, and --target is "
                f"{','.join(named)}",
                hint=f"--target {','.join((*named, target))} makes libraries for both",
            )
    alone = [name for name in of_targets if name in LIMITS]  # a target's only library
    return tuple(name for name in of_targets if name in (*asked, *alone))


def check_every_target(named: Sequence[str], asked: Sequence[str]) -> None:
    """Raise UsageError where the libraries that are asked for leave a target without one."""
    made = libraries_of(named, asked)
    for target in named:
        own = [name for name, one in LIBRARIES.items() if one["target"] == target]
        if own and not set(own) & set(made):  # one that was added to the registry may have none
            also = ",".join((own[0], *asked))
            raise UsageError(
                f"--libraries {','.join(asked)} has no library for {target} of --target",
                hint=f"name those that it is to have, too: --libraries {also}",
            )
