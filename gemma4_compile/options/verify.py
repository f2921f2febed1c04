"""The options of `gemma4-verify` and what can be wrong with them; loads nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.options.command import Command, CommandOptions, argument, given, option, switch
from gemma4_compile.options.process import check_known, non_empty, path

DEFAULT_STEPS = 64
DEFAULT_TEXT_TOKENS = 8000
FIT_TEXT_TOKENS = 1024
"""Of --fit-bits, which runs a text in a form for each part of the model."""
LEAST_BITS = 4.5  # of a weight in a group of 32 with a scale
CHAT, DOCUMENT, CODE, SCRIPT = "chat", "document", "code", "script"
TEXTS = (CHAT, DOCUMENT, CODE, SCRIPT)
"""Texts that ship: a conversation, a long one, programs, languages in other scripts."""
NO_TEXTS = "none"
AUTO, CPU, CUDA = "auto", "cpu", "cuda"
DEVICES = (AUTO, CPU, CUDA)

_OF_PACKAGES = ("reference", "drafter", "library")
"""Options that a comparison of recipes does not have."""


def parse_names(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(non_empty(name).strip() for name in text.split(","))


def parse_texts(text: str) -> tuple[str, ...]:
    """Names of texts by form, each once; UsageError for one that is none."""
    names = tuple(dict.fromkeys(parse_names(text)))
    if names == (NO_TEXTS,):
        return ()
    for name in names:
        own = "; a text of your own is --text FILE"
        check_known("--texts: unknown text", name, TEXTS, own)
    return names


def parse_bits(text: str) -> float:
    """Stored bits of a weight; UsageError for fewer than there can be."""
    try:
        bits = float(text)
    except ValueError:
        bits = math.nan
    if not LEAST_BITS <= bits < math.inf:
        raise UsageError(
            f"--fit-bits: expected bits a weight from {LEAST_BITS} on, found `{text}`",
            hint=f"4 bits take {LEAST_BITS} with their scales, 8 bits 8.5: try 4.8",
        )
    return bits


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(CommandOptions):
    """The options of `gemma4-verify`, which fit together."""

    package: Path = argument(
        "DIR",
        "the package's directory; of --compare-recipes and --fit-bits a checkpoint: hub id, "
        "directory, or `tiny`",
        type=path,
    )
    reference: str | None = option(
        None,
        "--reference MODEL",
        "the checkpoint the package was made from: hub id, directory, GGUF file, or `tiny`",
        type=non_empty,
    )
    library: str | None = option(
        None,
        "--library NAME",
        "which of the package's libraries is compared, one for browsers on WebGPU in Node, a "
        "native one on its device (default: the main one, the first of provenance.json)",
        type=non_empty,
    )
    compare_recipes: tuple[str, ...] = option(
        (),
        "--compare-recipes LIST",
        "recipes with commas, as q4f16,q8f16: bytes, and divergence from float32 by text, of "
        "each, without making a package; of a recipe file q4f16+FILE, or FILE.json on the "
        "checkpoint's default recipe",
        type=parse_names,
    )
    fit_bits: float | None = option(
        None,
        "--fit-bits BITS",
        "choose which parts of a checkpoint's decoder have 4 bits and which have 8 by what "
        "they lose, as 4.6 stored bits a weight; --output writes a file for --recipe",
        type=parse_bits,
    )
    revision: str | None = option(
        None, "--revision R", "branch, tag or commit on the hub", type=non_empty
    )
    drafter: str | None = option(
        None,
        "--drafter ID_OR_DIR",
        "the package's drafter: hub id or directory (default: the hub id that the package "
        "names, and `tiny`'s own)",
        type=non_empty,
    )
    tokenizer: str | None = option(
        None,
        "--tokenizer ID_OR_DIR",
        "of --compare-recipes and --fit-bits on a model in GGUF: the hub id or directory "
        "of the checkpoint that it was made from, for its tokenizer and chat template (default: "
        "those of the file)",
        type=non_empty,
    )
    adapter: tuple[str, ...] = option(
        (),
        "--adapter ID_OR_DIR",
        "an adapter that the package was made with, as gemma4-compile takes it; several in "
        "order (default: the hub ids that the package names)",
        type=non_empty,
        action="append",
    )
    steps: int = option(
        DEFAULT_STEPS,
        "--steps N",
        "tokens decoded from the start, and again after the long prompt (default: %(default)s)",
    )
    text: Path | None = option(
        None,
        "--text FILE",
        "another text than the one that ships; with --compare-recipes and --fit-bits one more text",
    )
    texts: tuple[str, ...] = option(
        TEXTS,
        "--texts LIST",
        f"which of the texts by form are run, with commas: {', '.join(TEXTS)} (default: all), "
        f"or {NO_TEXTS}",
        type=parse_texts,
    )
    text_tokens: int | None = option(
        None,
        "--text-tokens N",
        f"most tokens of each of these texts (default: {DEFAULT_TEXT_TOKENS}, of --fit-bits "
        f"{FIT_TEXT_TOKENS})",
    )
    device: str = option(
        AUTO,
        "--device",
        "what transformers runs on (default: cuda where torch finds it)",
        choices=DEVICES,
    )
    output: Path | None = option(
        None,
        "--output -o FILE",
        "of --compare-recipes: write the report there, too, as JSON; of --fit-bits: the recipe",
    )
    node_modules: Path | None = option(
        None,
        "--node-modules DIR",
        "for webgpu: the folder with the Node packages `webgpu` and `@mlc-ai/web-runtime` "
        "(default: ./node_modules)",
    )
    json: bool = switch("--json", "print JSON, not a table")

    @property
    def usual_text_tokens(self) -> int:
        """Most tokens of a text, where nothing else is asked for."""
        return DEFAULT_TEXT_TOKENS if self.fit_bits is None else FIT_TEXT_TOKENS

    @property
    def most_text_tokens(self) -> int:
        """Most tokens of a text."""
        return self.text_tokens or self.usual_text_tokens

    def __post_init__(self) -> None:
        """Raise UsageError for values that cannot be, or do not fit together."""
        for name, value, least, usual in (
            ("--steps", self.steps, 1, DEFAULT_STEPS),
            ("--text-tokens", self.text_tokens, 2, self.usual_text_tokens),
        ):
            if value is not None and value < least:
                raise UsageError(
                    f"{name}: expected at least {least}, found {value}",
                    hint=f"leave it out for {usual}",
                )
        asked = given(self, ("compare_recipes", "fit_bits"))
        if len(asked) > 1:
            raise UsageError(
                f"{asked[0]} and {asked[1]} are two runs",
                hint="fit a recipe into a file first, then compare q4f16+FILE",
            )
        if not asked:
            self._check_package()
        elif others := given(self, _OF_PACKAGES):
            raise UsageError(
                f"{asked[0]} compares a checkpoint with itself, and takes no {others[0]}",
                hint="give the checkpoint in the place of DIR",
            )

    def _check_package(self) -> None:
        if self.reference is None:
            raise UsageError(
                "the following arguments are required: --reference",
                hint="give the checkpoint that the package was made from; or recipes to compare on "
                "a checkpoint by --compare-recipes, or a size to fit one to by --fit-bits",
            )
        if self.output is not None:
            raise UsageError(
                "--output is of --compare-recipes and --fit-bits; the report of a package is in "
                "the package",
                hint="leave it out, or print it with --json",
            )
        if self.tokenizer is not None:
            raise UsageError(
                "--tokenizer is of --compare-recipes and --fit-bits; a package has its own",
                hint="leave it out",
            )


COMMAND = Command(
    "gemma4-verify",
    "Compare a package with transformers in float32, and write numerics.json and "
    "numerics.svg into it (numerics-NAME of a --library that is not the main one); or, with "
    "--compare-recipes, compare recipes on a checkpoint, and with --fit-bits choose one. Exit "
    "status: 0 within the thresholds, 1 not, 2 wrong usage.",
    VerifyOptions,
    interrupted="what was there is as it was before",
)
