"""The arguments of `gemma4-compile` and what can be wrong with them, known without the compiler.

To load the compiler takes seconds. The names that it knows are therefore read from the files that
its registries are made of: `quantization/recipes.json` and `targets/targets.json`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.media.sizes import BUDGETS, DEFAULT_BUDGET, SHAPES, WIDE
from gemma4_compile.options.dump import dump_option
from gemma4_compile.options.libraries import (
    ALL,
    DEFAULT_LIMITS,
    LIMITS,
    float16_forms,
    libraries,
    libraries_help,
    more_limits,
    registered,
    targets,
)
from gemma4_compile.options.process import Options, Parser, non_empty, path, run_command, warn
from gemma4_compile.options.publish import add_publish, check_publish
from gemma4_compile.system.regular_files import resolved

QUANTS = tuple(registered("quantization", "recipes.json"))
ACTIVATIONS = ("auto", "float", "int8")
OLD_ACTIVATIONS = {"exact": "float"}
"""Names that packages and command lines of earlier versions have."""
MODALITIES = ("text", "image", "audio")
DEFAULT_PRESET = "gemma-4-E2B-it"
"""The config of DEFAULT_MODEL, which ships with this program."""
DEFAULT_MODEL = f"google/{DEFAULT_PRESET}-qat-q4_0-unquantized"
"""Trained for the 4 bits of DEFAULT_QUANT."""
DEFAULT_TARGET, DEFAULT_QUANT = "webgpu", "q4f16"
DEFAULT_CONTEXT_LENGTH = 8192
DEFAULT_PREFILL_CHUNK = 512

_CALIBRATE_HELP = "choose 4-bit integers by a text, or by one that the model writes itself (slow)"
_OF_PACKAGES = ("output", "force", "only", "dump_ir", "verify", "node_modules", "tokenizer")
_OF_REBUILDS = ("rebuild", "model", "drafter", "adapter", "tokenizer", "output", "force", "debug")
"""What says where files are; all else is of the package. So are options that name other inputs."""
# What --plan and --report do not need: they may precede a compilation's own options, so that
# the same line with one word more shows what it would do.
IGNORED: dict[str, tuple[str, ...]] = {
    "--plan": (*_OF_PACKAGES, "allow_nonfinite", "calibrate"),
    "--report": (
        *(*_OF_PACKAGES, "libraries", "limits", "activations", "float16", "context"),
        *("prefill_chunk", "image_tokens", "image_shape", "calibrate"),
    ),
}


def make_parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="gemma4-compile",
        description="Compile a Gemma 4 checkpoint into a package for the browser, for GPUs of "
        "NVIDIA and Apple, or for this CPU.",
    )
    parser.add_argument(
        "model",
        type=non_empty,
        nargs="?",
        metavar="MODEL",
        help=f"hub id, directory, GGUF file, or `tiny`, which ships (default: {DEFAULT_MODEL})",
    )
    parser.add_argument("-o", "--output", type=path, metavar="DIR", help="where the package goes")
    _add_target(parser.add_argument_group("target and weights"))
    _add_contents(parser.add_argument_group("pictures, sounds and guesses"))
    _add_sizes(parser.add_argument_group("sizes"))
    _add_questions(parser.add_argument_group("questions and parts, in place of a whole package"))
    _add_build(parser.add_argument_group("the build"))
    add_publish(parser.add_argument_group("to the hub"))
    parser.add_common()
    return parser


def _add_target(group: Options) -> None:
    group.add_argument(
        "--target",
        metavar="TARGET",
        default=DEFAULT_TARGET,
        help=f"{', '.join(LIMITS)}, or several with commas, over the same weights (default: "
        "%(default)s)",
    )
    group.add_argument("--libraries", metavar="LIST", help=libraries_help())
    group.add_argument(
        "--limits",
        metavar="NAME",
        help=f"make one library, with these limits: {DEFAULT_LIMITS}; {more_limits()}",
    )
    group.add_argument(
        "--adapter",
        type=non_empty,
        action="append",
        default=[],
        metavar="ID_OR_DIR",
        help="merge a LoRA adapter of PEFT into the weights: the directory that holds its "
        "adapter_config.json, or its hub id (with @REVISION a branch, tag or commit); several in "
        "order",
    )
    group.add_argument(
        "--quant",
        metavar="QUANT",
        default=DEFAULT_QUANT,
        help=f"{', '.join(QUANTS)} (default: %(default)s)",
    )
    group.add_argument(
        "--recipe",
        type=path,
        metavar="FILE",
        help="other schemes for some parameters, as JSON: "
        '{"schemes": {"embed_tokens": "q8f16_1"}}; --quant is what the rest gets',
    )
    group.add_argument(
        "--calibrate", type=path, nargs="?", const=True, metavar="FILE", help=_CALIBRATE_HELP
    )
    group.add_argument(
        "--activations",
        metavar="FORM",
        help="make one library, whose matmuls multiply vectors of the recipe's float type, or int8 "
        f"in groups of 32 ({', '.join(ACTIVATIONS)}: by target and limits)",
    )
    group.add_argument(
        "--float16",
        metavar="FORM",
        help="make one library, which computes in the recipe's float16, or reads its float16 as "
        f"words and computes in float32: {', '.join(float16_forms())}",
    )


def _add_contents(group: Options) -> None:
    group.add_argument(
        "--modalities",
        default=MODALITIES[0],
        metavar="LIST",
        help=f"what the package takes, with commas: {', '.join(MODALITIES)}, or `{ALL}` that the "
        "checkpoint has (default: %(default)s)",
    )
    group.add_argument(
        "--image-tokens",
        type=int,
        metavar="N",
        help="most tokens of a picture that the package has room for, of "
        f"{', '.join(map(str, BUDGETS))} (default: {DEFAULT_BUDGET})",
    )
    group.add_argument(
        "--image-shape",
        default=WIDE,
        metavar="SHAPE",
        help="what the stock client stretches a picture to: wide, 960 x 672 pixels, or square, 768 "
        "x 768 (default: %(default)s)",
    )
    group.add_argument(
        "--drafter",
        type=non_empty,
        metavar="ID_OR_DIR",
        help="put the model's drafter into the package, which guesses tokens ahead: the hub id "
        "(such as google/gemma-4-E2B-it-assistant; with @REVISION a branch, tag or commit) or "
        "directory of its checkpoint; `tiny` for `tiny`'s own",
    )
    group.add_argument(
        "--tokenizer",
        type=non_empty,
        metavar="ID_OR_DIR",
        help="of a model in GGUF: the hub id (with @REVISION a branch, tag or commit) or directory "
        "of the checkpoint that it was made from, for its tokenizer, chat template and sampling "
        "(default: those of the file)",
    )


def _add_sizes(group: Options) -> None:
    group.add_argument(
        "--context",
        type=int,
        metavar="N",
        help=f"longest sequence in tokens (default: {DEFAULT_CONTEXT_LENGTH}, or the model's)",
    )
    group.add_argument(
        "--prefill-chunk",
        type=int,
        metavar="N",
        help=f"tokens of one prefill step (default: {DEFAULT_PREFILL_CHUNK}, or the context)",
    )


def _add_questions(group: Options) -> None:
    group.add_argument(
        "--plan", action="store_true", help="show what would be built, from the config alone"
    )
    group.add_argument(
        "--report",
        action="store_true",
        help="show what the recipe rounds away, tensor by tensor (reads all weights)",
    )
    group.add_argument("--json", action="store_true", help="with --plan or --report: as JSON")
    group.add_argument(
        "--only",
        choices=("library", "weights"),
        help="a partial build: this part alone; the library needs only the config",
    )


def _add_build(group: Options) -> None:
    group.add_argument(
        "--rebuild",
        type=path,
        metavar="PACKAGE",
        help="make a package again from what its provenance.json says, and compare every byte; "
        "MODEL (and --drafter) where its checkpoint was a directory, -o to keep what is made",
    )
    group.add_argument(
        "--revision", type=non_empty, metavar="R", help="branch, tag or commit on the hub"
    )
    group.add_argument(
        "--force", action="store_true", help="replace DIR even if it is no package of ours"
    )
    group.add_argument(
        "--allow-nonfinite",
        action="store_true",
        help="store 0 for weights that are NaN or infinite, which are an error otherwise; the "
        "package names them",
    )
    group.add_argument(
        "--verify",
        action="store_true",
        help="then compare the package with transformers in float32 (gemma4-verify does it alone)",
    )
    group.add_argument(
        "--node-modules",
        type=path,
        metavar="DIR",
        help="with --verify, for webgpu: where the Node packages `webgpu` and "
        "`@mlc-ai/web-runtime` are (default: ./node_modules)",
    )
    group.add_argument(
        "--dump-ir",
        type=dump_option,
        metavar="DIR",
        help="write each phase's IR and kernel sources; `each`, or `each:DIR`: the IR after every "
        "pass, into OUTPUT-ir or DIR",
    )


def warn_of_old_names(arguments: argparse.Namespace) -> None:
    """Name what is called otherwise now; the next version takes the new names alone."""
    old = arguments.activations
    if old in OLD_ACTIVATIONS:
        new = OLD_ACTIVATIONS[old]
        warn(
            f"--activations {old} is now --activations {new}",
            f"write {new}: the next version does not know {old}",
        )


def warn_of_ignored(arguments: argparse.Namespace) -> None:
    """Name the options that do nothing next to --plan or --report."""
    question = "--plan" if arguments.plan else "--report"
    if not getattr(arguments, question[2:]):
        return
    parser = make_parser()
    given = [
        "-o" if name == "output" else f"--{name.replace('_', '-')}"
        for name in IGNORED[question]
        if getattr(arguments, name) != parser.get_default(name)
    ]
    if given:
        verb = "does" if len(given) == 1 else "do"
        warn(
            f"{question} writes nothing, and {', '.join(given)} {verb} nothing next to it",
            f"leave out {question} to compile",
        )


def _resolved(option: str, given: Path) -> Path:
    try:
        return resolved(given)
    except OSError as error:
        raise UsageError(
            f"{option}: cannot read `{given}`: {error.strerror}", hint="check the file's name"
        ) from error


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for what does not exist or fit together."""
    if arguments.plan and arguments.report:
        raise UsageError("--plan and --report exclude each other", hint="give one of them")
    _check_names(arguments)
    if check_publish(arguments, make_parser):
        return
    if arguments.rebuild is not None:
        _check_rebuild(arguments)
    if arguments.rebuild is not None or arguments.plan or arguments.report:
        return
    if arguments.output is None:
        example = f"gemma4-compile {arguments.model or DEFAULT_MODEL} -o DIR"
        raise UsageError(
            "the following arguments are required: -o/--output", hint=f"for example: {example}"
        )
    dump = None if arguments.dump_ir is None else arguments.dump_ir.beside(arguments.output)
    for option, given in (("--dump-ir", dump), ("--recipe", arguments.recipe)):
        if given is not None and _resolved(option, given).is_relative_to(
            _resolved("-o", arguments.output)
        ):
            raise UsageError(
                f"{option} `{given}` lies in -o `{arguments.output}`, which is replaced as a whole",
                hint="give it a place of its own",
            )
    if arguments.json:
        raise UsageError("--json goes with --plan or --report", hint="leave it out, or add one")
    if arguments.node_modules is not None and not arguments.verify:
        raise UsageError("--node-modules goes with --verify", hint="leave it out, or add --verify")
    if arguments.verify and arguments.only:
        raise UsageError("--verify needs a whole package", hint="leave out --only")


def _check_rebuild(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options beside --rebuild that the package has in its provenance."""
    parser = make_parser()
    given = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(arguments).items()
        if name not in _OF_REBUILDS and value != parser.get_default(name)
    ]
    if given:
        raise UsageError(
            f"--rebuild takes every option from the package, and {', '.join(given)} "
            f"{'is' if len(given) == 1 else 'are'} given",
            hint="leave out all but MODEL, --drafter, --adapter, --tokenizer, -o and --force",
        )


def modalities(text: str) -> tuple[str, ...] | None:
    """The names of a --modalities list, text always among them; None is all of the checkpoint's.

    UsageError for a name that is none.
    """
    names = [name.strip() for name in text.split(",")]
    if names == [ALL]:
        return None
    for name in names:
        if name not in MODALITIES:
            raise UsageError(
                f"--modalities: unknown modality `{name}`",
                hint=f"known: {', '.join(MODALITIES)}; `{ALL}` alone is all of them",
            )
    return tuple(name for name in MODALITIES if name in (*names, MODALITIES[0]))


def _check_names(arguments: argparse.Namespace) -> None:
    quant, limits = arguments.quant, arguments.limits
    libraries(arguments)
    if quant not in QUANTS:
        raise UsageError(f"unknown quantisation `{quant}`", hint=f"known: {', '.join(QUANTS)}")
    for target in targets(arguments.target):
        if limits is not None and limits not in LIMITS[target]:
            raise UsageError(
                f"target `{target}` has no limits `{limits}`",
                hint=f"limits of `{target}`: {', '.join(LIMITS[target])}",
            )
    _check_pictures(arguments)
    if arguments.activations not in (None, *ACTIVATIONS, *OLD_ACTIVATIONS):
        raise UsageError(
            f"unknown activations `{arguments.activations}`",
            hint=f"known: {', '.join(ACTIVATIONS)}",
        )


def _check_pictures(arguments: argparse.Namespace) -> None:
    tokens, shape = arguments.image_tokens, arguments.image_shape
    if tokens is not None and tokens not in BUDGETS:
        raise UsageError(
            f"--image-tokens: expected one of {', '.join(map(str, BUDGETS))}, found {tokens}",
            hint=f"leave it out for {DEFAULT_BUDGET}",
        )
    if shape not in SHAPES:
        raise UsageError(
            f"--image-shape: unknown shape `{shape}`", hint=f"known: {', '.join(SHAPES)}"
        )
    names, asked = modalities(arguments.modalities), tokens is not None or shape != WIDE
    if asked and names is not None and "image" not in names:
        option = "--image-shape" if tokens is None else "--image-tokens"
        raise UsageError(
            f"{option} is for packages that take pictures", hint="add --modalities text,image"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Look at the arguments alone; returns the exit status: 0 or 2, wrong usage."""
    return run_command(make_parser(), check, argv)
