"""A command: its options as a frozen dataclass, whose fields say how they are written.

argv becomes one value of that class, once, before anything heavy is loaded. `type` of an option
looks at its text, `__post_init__` of the class at what fits together; everything else reads fields.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Generic, TypeVar

from gemma4_compile.options.process import Hints, Options, Parser, path, run_command
from gemma4_compile.system import logs

_WRITTEN = "written"  # of a field's metadata
_TYPES: Mapping[str, Callable[[str], object]] = {"int": int, "float": float, "Path": path}
"""How values are read, by the annotation of a field."""
Help = str | Callable[[], str]
T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Group:
    """Options under a title of the help, those without one first.

    Attributes
    ----------
    is_exclusive : one of them at most is given; without a title
    """

    title: str = ""
    description: str | None = None
    is_exclusive: bool = False

    def option(self, default: T, flags: str, help: Help, **keywords: object) -> T:
        """A field that an option sets.

        Parameters
        ----------
        default : its value where the option is not given, and `%(default)s` in the help
        flags : as they are written, with spaces, and the name of their value: `-o --output DIR`
        keywords : of argparse's `add_argument`; `type` is that of the field, where _TYPES has it
        """
        *names, last = flags.split()
        known = dict(keywords)
        if last.startswith("-"):
            names.append(last)
        else:
            known["metavar"] = last
        if isinstance(help, str):
            help = help.replace("%(default)s", str(default))
        written = _Written(tuple(names), help, known, self)
        return field(default=default, metadata={_WRITTEN: (written,)})

    def switch(self, flag: str, help: str) -> bool:
        """A field that is True where its option is given."""
        return self.option(False, flag, help, action="store_true")

    def add_to(self, parser: Parser) -> Options:
        """The place of its options in a parser."""
        if self.is_exclusive:
            return parser.add_mutually_exclusive_group()
        return parser.add_argument_group(self.title, self.description) if self.title else parser


@dataclass(frozen=True, eq=False, repr=False)
class _Written:
    """How an option is written.

    Attributes
    ----------
    flags : none of an argument that has a place
    help : also made when it is shown, of what is registered then
    keywords : what else argparse's `add_argument` takes
    """

    flags: tuple[str, ...]
    help: Help
    keywords: Mapping[str, Any]
    group: Group

    @property
    def shown(self) -> str:
        """How messages name it."""
        return min(self.flags, key=len) if self.flags else str(self.keywords["metavar"])

    def add_to(self, place: Options, one: Field[object]) -> None:
        """Add it to a parser or a group, for the field that it sets."""
        type = _TYPES.get(str(one.type).removesuffix(" | None"))
        usual = {} if type is None else {"type": type}
        dest = {"dest": one.name} if self.flags else {}
        help = self.help if isinstance(self.help, str) else self.help()
        names = self.flags or (one.name,)
        place.add_argument(*names, help=help, **{**usual, **dest, **self.keywords})


PLAIN = Group()
option, switch = PLAIN.option, PLAIN.switch


def argument(metavar: str, help: str, type: Callable[[str], T]) -> T:
    """A field that a command needs, given by its place."""
    written = _Written((), help, {"metavar": metavar, "type": type}, PLAIN)
    return field(metadata={_WRITTEN: (written,)})


def optional_argument(metavar: str, help: str, type: Callable[[str], T]) -> T | None:
    """A field that a command takes by its place; None where it is not given."""
    known = {"metavar": metavar, "type": type, "nargs": "?", "default": None}
    return field(default=None, metadata={_WRITTEN: (_Written((), help, known, PLAIN),)})


def several(default: T, *options: T) -> T:
    """A field that each of several options adds to."""
    written = [one for each in options for one in each.metadata[_WRITTEN]]  # type: ignore[attr-defined]
    return field(default=default, metadata={_WRITTEN: tuple(written)})


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """What every command takes."""

    debug: bool = False


def given(
    options: CommandOptions, names: Sequence[str] = (), *, all_but: Collection[str] = ()
) -> list[str]:
    """Options whose values are not their defaults, as they are written: of some, or of most."""
    known = {one.name: one for one in fields(options) if _WRITTEN in one.metadata}
    return [
        known[name].metadata[_WRITTEN][0].shown
        for name in names or (name for name in known if name not in all_but)
        if getattr(options, name) != known[name].default
    ]


OptionsT = TypeVar("OptionsT", bound=CommandOptions)


@dataclass(frozen=True, eq=False, repr=False)
class Command(Generic[OptionsT]):
    """A command of the installation.

    Attributes
    ----------
    options : the class of its options
    hints, interrupted : as `run_command` takes them
    surplus : the hint for a word that has no place on the command line
    """

    name: str
    description: str
    options: type[OptionsT]
    epilog: str | None = None
    hints: Hints = field(default_factory=dict)
    interrupted: str | None = None
    surplus: str | None = None

    def make_parser(self) -> Parser:
        """Its arguments, which leave out of the result what is not given."""
        parser = Parser(self.name, self.description, self.epilog, self.surplus)
        parser.argument_default = argparse.SUPPRESS
        places: dict[Group, Options] = {}
        for one in fields(self.options):
            for written in one.metadata.get(_WRITTEN, ()):
                if written.group not in places:
                    places[written.group] = written.group.add_to(parser)
                written.add_to(places[written.group], one)
        parser.add_common()
        return parser

    def parse(self, argv: Sequence[str] | None = None) -> OptionsT:
        """The options of a command line; UsageError for what cannot be, or does not fit."""
        values = vars(self.make_parser().parse_args(argv))
        lists = {name: tuple(one) for name, one in values.items() if isinstance(one, list)}
        return self.options(**{**values, **lists})

    def parsed(self, argv: Sequence[str] | None = None) -> OptionsT | int:
        """The options of a command line, or the exit status where they are wrong, which is said."""
        found: list[OptionsT] = []

        def parse() -> None:
            found.append(self.parse(argv))
            logs.set_up()

        debug = "--debug" in (sys.argv[1:] if argv is None else argv)
        status = run_command(self.name, parse, debug=debug)
        return status or found[0]

    def run(self, body: Callable[[OptionsT], None], options: OptionsT) -> int:
        """Run the command; returns the exit status, as `run_command` does."""
        return run_command(
            self.name,
            lambda: body(options),
            debug=options.debug,
            hints=self.hints,
            interrupted=self.interrupted,
        )

    def main(self, body: Callable[[OptionsT], None], argv: Sequence[str] | None) -> int:
        """Parse and run; returns the exit status."""
        options = self.parsed(argv)
        return options if isinstance(options, int) else self.run(body, options)
