"""What messages and hints tell a user to type exists: options, targets, recipes, commands."""

from __future__ import annotations

import argparse
import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4_compile import kernels
from gemma4_compile.errors import UsageError
from gemma4_compile.options import chat as chat_options
from gemma4_compile.options import compile as options
from gemma4_compile.options import libraries as library_options
from gemma4_compile.options import serve as serve_options
from gemma4_compile.options import verify as verify_options
from gemma4_compile.options.process import Parser
from gemma4_compile.quantization.schemes import NAMED
from gemma4_compile.targets import TARGETS

ROOT = Path(__file__).parents[2]
FOLDERS = ("gemma4_compile", "model_spec", "quantization", "targets")
PARSERS = (
    *(
        each.COMMAND.make_parser()
        for each in (options, chat_options, serve_options, verify_options)
    ),
    kernels.make_parser(),
)
OTHERS = {
    *("--force-reinstall", "--raw-ptx", "--enable-unsafe-webgpu", "--enable-features"),
    *("--adapter-path", "--dequantize"),  # of MLX
    *("--include", "--local-dir"),  # of `hf download`
}
THINGS = ("MODEL", "ID_OR_DIR", "DIR_OR_ID", "DIR", "FOLDER", "FILE", "R")
NAMING = re.compile(r"--[a-z]|gemma4-[a-z]")  # in the source of whatever the patterns below find
NO_NAME = r"(?!(?:and|is|or|say)\b)"  # a sentence goes on
LIMITS = {name for limits in library_options.LIMITS.values() for name in limits}


@functools.cache
def texts() -> tuple[tuple[str, str], ...]:
    """Place and value of every sentence in the sources; an expression in one is `{}`."""
    return tuple(each for each in _all_texts() if " " in each[1])


def _all_texts() -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text("utf-8")
            if not NAMING.search(source):
                continue  # nothing that is looked for
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.JoinedStr):
                    parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
                    text = "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = node.value
                else:
                    continue
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def named_things(parser: argparse.ArgumentParser) -> Iterator[tuple[Parser, argparse.Action]]:
    """Arguments that name a model, a file or a directory, with the parsers that have them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from named_things(each)
        elif action.metavar in THINGS:
            assert isinstance(parser, Parser)
            yield parser, action


@pytest.mark.parametrize(
    ("parser", "action"),
    [
        pytest.param(parser, action, id=f"{parser.prog} {action.dest}")
        for whole in PARSERS
        for parser, action in named_things(whole)
    ],
)
def test_an_empty_name_names_nothing(parser: Parser, action: argparse.Action) -> None:
    """As a shell makes of a variable that is not set: `Path("")` would be where the user is."""
    given = [*action.option_strings[-1:], ""]
    with pytest.raises(UsageError, match="the name is empty"):
        parser.parse_args(given)


def known_options(parser: argparse.ArgumentParser) -> set[str]:
    known = {name for action in parser._actions for name in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            known = known.union(*map(known_options, action.choices.values()))
    return known


def named(pattern: str) -> Iterator[tuple[str, str]]:
    """Place and first group of every match in a text that is shown."""
    for place, text in texts():
        for found in re.finditer(pattern, text):
            yield place, found[1]


def test_options_exist() -> None:
    known = set().union(*map(known_options, PARSERS))
    wrong = [
        f"{place}: {option}"
        for place, option in named(r"(?<![\w-])(--[a-z][a-z0-9-]*[a-z0-9])(?![\w-])")
        if option not in known and option not in OTHERS
    ]
    assert not wrong, "\n".join(wrong)


def test_targets_recipes_and_limits_exist() -> None:
    wanted = {
        rf"--target `?{NO_NAME}([a-z][a-z0-9]*)": set(TARGETS),
        rf"--quant `?{NO_NAME}([a-z][a-z0-9]*)": set(NAMED),
        rf"--limits `?{NO_NAME}([a-z][a-z0-9-]*)": LIMITS,
    }
    for pattern, names in wanted.items():
        found = [*named(pattern)]
        wrong = [f"{place}: {name}" for place, name in found if name not in names]
        assert not wrong, "\n".join(wrong)


def test_commands_exist() -> None:
    programs = {parser.prog for parser in PARSERS} | {"gemma4-web"}
    shown = [
        (place, name)
        for place, name in named(r"(?<![\w./-])(gemma4-[a-z]+)(?![\w-])")
        if name not in programs
    ]
    assert {name for _, name in shown} <= {"gemma4-tiny", "gemma4-diagnosis", "gemma4-text"}, shown
