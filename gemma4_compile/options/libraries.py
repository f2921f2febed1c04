"""Which libraries a command line makes: its targets, --libraries, or one by --limits.

The registries are read as files, without the compiler, which takes seconds to load.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

from gemma4_compile.errors import UsageError

ALL = "all"
DEFAULT_LIMITS = "default"


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
    return f"fewer libraries for browsers, with commas (default: {ALL}): {named}"


def targets(text: str) -> tuple[str, ...]:
    """The names in the list of targets; UsageError for one that is none, or is there twice."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in LIMITS:
            raise UsageError(f"unknown target `{name}`", hint=f"known targets: {', '.join(LIMITS)}")
        if names.count(name) > 1:
            raise UsageError(f"--target: `{name}` is given twice", hint="give it once")
    return names


def float16_forms() -> tuple[str, ...]:
    """How libraries take a recipe's float16."""
    return tuple(dict.fromkeys(one["float16"] for one in LIBRARIES.values()))


def _check_float16(float16: str, target: str) -> None:
    """Raise UsageError for no form, or one that a target has no kernels for."""
    having = {one["target"] for one in LIBRARIES.values() if one["float16"] == float16}
    if not having:
        raise UsageError(
            f"--float16: unknown form `{float16}`", hint=f"known: {', '.join(float16_forms())}"
        )
    if target not in having:
        raise UsageError(
            f"--float16 {float16}: target `{target}` has no such library",
            hint=f"these have: {', '.join(sorted(having))}; leave --float16 out",
        )


def libraries(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Names of the libraries that are made, the main one first: the first target's first.

    None are named where --limits, --activations or --float16 describe the only one. UsageError
    for names that do not fit to each other or to the targets.
    """
    named = targets(arguments.target)
    one = ("limits", "activations", "float16")
    told = [name for name in one if getattr(arguments, name) is not None]
    if told:
        if arguments.libraries is not None:
            raise UsageError(
                f"--{told[0]} makes one library, and --libraries names some",
                hint=f"leave one of them out; --libraries {ALL} makes all",
            )
        if named[1:]:
            raise UsageError(
                f"--{told[0]} makes one library, and {len(named)} targets are named",
                hint="choose among those of the targets with --libraries",
            )
        if arguments.float16 is not None:
            _check_float16(arguments.float16, named[0])
        return ()
    of_targets = [
        name for target in named for name, one in LIBRARIES.items() if one["target"] == target
    ]
    if arguments.libraries in (None, ALL):
        return tuple(of_targets)
    asked = [name.strip() for name in arguments.libraries.split(",")]
    for name in asked:
        if name not in LIBRARIES:
            raise UsageError(
                f"--libraries: unknown library `{name}`",
                hint=f"known: {', '.join(LIBRARIES)}; `{ALL}` alone is all of them",
            )
        if name not in of_targets:
            target = LIBRARIES[name]["target"]
            raise UsageError(
                f"--libraries: `{name}` is a library for {target}, and --target is "
                f"{arguments.target}",
                hint=f"--target {','.join((*named, target))} makes libraries for both",
            )
    alone = [name for name in of_targets if name in LIMITS]  # a target's only library
    return tuple(name for name in of_targets if name in (*asked, *alone))


def to_make(arguments: argparse.Namespace) -> int:
    """How many libraries a command makes, at most, whose arguments were looked at."""
    asks = ("plan", "report", "rebuild", "from_package", "dump_ir")
    is_other = any(getattr(arguments, name) for name in asks) or arguments.only == "weights"
    return 0 if is_other else len(libraries(arguments)) or 1
