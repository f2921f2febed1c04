"""The names of libraries and targets that a command line may give: those of the registries."""

from __future__ import annotations

from gemma4_compile.options.compile import make_parser
from gemma4_compile.options.libraries import LIBRARIES, LIMITS, libraries, libraries_help, targets
from gemma4_compile.targets import libraries as registry


def test_the_compiler_knows_the_same_names() -> None:
    assert list(LIBRARIES) == list(registry.LIBRARIES)
    assert {one["target"] for one in LIBRARIES.values()} == set(LIMITS)


def test_every_library_for_browsers_is_made_by_default() -> None:
    arguments = make_parser().parse_args(["tiny", "-o", "out"])
    browsers = [name for name, one in LIBRARIES.items() if one["target"] == "webgpu"]
    assert list(libraries(arguments)) == browsers
    assert all(name in libraries_help() for name in browsers)


def test_targets_come_in_their_order() -> None:
    assert targets("cuda, webgpu") == ("cuda", "webgpu")
