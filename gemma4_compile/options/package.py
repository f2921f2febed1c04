"""The options of `gemma4-compile` that say what a package is made of.

To load the compiler takes seconds. The names that it knows are therefore read from the files that
its registries are made of: `quantization/recipes.json` and `targets/targets.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.errors import UsageError
from gemma4_compile.media.sizes import BUDGETS, DEFAULT_BUDGET, SHAPES, WIDE
from gemma4_compile.options.budget import budget_of, parse_fit
from gemma4_compile.options.command import CommandOptions, Group, given, option
from gemma4_compile.options.libraries import (
    ALL,
    DEFAULT_LIMITS,
    LIMITS,
    check_float16,
    check_limits,
    check_one,
    float16_form,
    float16_forms,
    libraries_help,
    libraries_of,
    library_names,
    more_limits,
    registered,
    targets,
)
from gemma4_compile.options.process import check_known, non_empty, path, warn

MOBILE = "mobile"
"""The recipe of Google's checkpoints for phones alone, and their default."""
QUANTS = (*registered("quantization", "recipes.json"), MOBILE)
ACTIVATIONS = ("auto", "float", "int8")
OLD_ACTIVATIONS = {"exact": "float"}
"""Names that packages and command lines of earlier versions have."""
MODALITIES = ("text", "image", "audio")
DEFAULT_PRESET = "gemma-4-E2B-it"
"""The config of DEFAULT_MODEL, which ships with this program."""
DEFAULT_MODEL = f"google/{DEFAULT_PRESET}-qat-q4_0-unquantized"
"""Trained for the 4 bits of TRAINED_QUANT."""
DEFAULT_TARGET = "webgpu"
DEFAULT_QUANT, TRAINED_QUANT = "q4kf16", "q4f16"
"""Of checkpoints that lie anywhere, and of those whose weights lie on 16 levels a group already,
which the second holds exactly; compile/usual_recipe.py tells them apart."""
DEFAULT_CONTEXT_LENGTH = 8192
DEFAULT_PREFILL_CHUNK = 512
DEFAULT_TEXT_TOKENS = 2048  # of an encoder

_WEIGHTS = Group("target and weights")
_CONTENTS = Group("pictures, sounds and guesses")
_SIZES = Group("sizes")


def parse_quant(text: str) -> str:
    """The name of a recipe; UsageError for none."""
    check_known("unknown quantisation", text, QUANTS)
    return text


def parse_activations(text: str) -> str:
    """A form of activations; names of earlier versions are taken with a warning."""
    if text in OLD_ACTIVATIONS:
        new = OLD_ACTIVATIONS[text]
        warn(
            f"--activations {text} is now --activations {new}",
            f"write {new}: the next version does not know {text}",
        )
        return new
    check_known("unknown activations", text, ACTIVATIONS)
    return text


def parse_modalities(text: str) -> tuple[str, ...] | None:
    """The names of a --modalities list, text always among them; None is all of the checkpoint's.

    UsageError for a name that is none.
    """
    names = [name.strip() for name in text.split(",")]
    if names == [ALL]:
        return None
    for name in names:
        alone = f"; `{ALL}` alone is all of them"
        check_known("--modalities: unknown modality", name, MODALITIES, alone)
    return tuple(name for name in MODALITIES if name in (*names, MODALITIES[0]))


def parse_image_shape(text: str) -> str:
    """The shape of the stock client's picture; UsageError for none."""
    check_known("--image-shape: unknown shape", text, SHAPES)
    return text


def check_image_tokens(tokens: int | None) -> None:
    """Raise UsageError for a number that is no budget of the processor."""
    if tokens is not None and tokens not in BUDGETS:
        raise UsageError(
            f"--image-tokens: expected one of {', '.join(map(str, BUDGETS))}, found {tokens}",
            hint=f"leave it out for {DEFAULT_BUDGET}",
        )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PackageOptions(CommandOptions):
    """What a package is made of, and where it goes."""

    model: str | None = option(
        None,
        "MODEL",
        "hub id, directory, GGUF file, or what ships: `tiny`, `tiny-embedding` (default: "
        f"{DEFAULT_MODEL})",
        type=non_empty,
        nargs="?",
    )
    output: Path | None = option(None, "-o --output DIR", "where the package goes")
    target: tuple[str, ...] = _WEIGHTS.option(
        (DEFAULT_TARGET,),
        "--target TARGET",
        lambda: (
            f"{', '.join(LIMITS)}, or several with commas, over the same weights (default: "
            f"{DEFAULT_TARGET})"
        ),
        type=targets,
    )
    libraries: tuple[str, ...] = _WEIGHTS.option(
        (), "--libraries LIST", libraries_help(), type=library_names
    )
    limits: str | None = _WEIGHTS.option(
        None,
        "--limits NAME",
        lambda: f"make one library, with these limits: {DEFAULT_LIMITS}; {more_limits()}",
    )
    adapter: tuple[str, ...] = _WEIGHTS.option(
        (),
        "--adapter ID_OR_DIR",
        "merge a LoRA adapter of PEFT into the weights: the directory that holds its "
        "adapter_config.json, or its hub id (with @REVISION a branch, tag or commit); several in "
        "order",
        type=non_empty,
        action="append",
    )
    quant: str | None = _WEIGHTS.option(
        None,
        "--quant QUANT",
        lambda: (
            f"{', '.join(QUANTS)} (default: {DEFAULT_QUANT}; {TRAINED_QUANT} of checkpoints "
            f"that were trained for 4 bits, {MOBILE} of those for phones, whose own form it is)"
        ),
        type=parse_quant,
    )
    recipe: Path | None = _WEIGHTS.option(
        None,
        "--recipe FILE",
        "other schemes for some parameters, as JSON: "
        '{"schemes": {"embed_tokens": "q8f16_1"}}; --quant is what the rest gets',
    )
    calibrate: Path | bool | None = _WEIGHTS.option(
        None,
        "--calibrate FILE",
        "choose 4-bit integers by a text, or by one that the model writes itself (slow)",
        type=path,
        nargs="?",
        const=True,
    )
    activations: str | None = _WEIGHTS.option(
        None,
        "--activations FORM",
        "make one library, whose matmuls multiply vectors of the recipe's float type, or int8 "
        f"in groups of 32 ({', '.join(ACTIVATIONS)}: by target and limits)",
        type=parse_activations,
    )
    float16: str | None = _WEIGHTS.option(
        None,
        "--float16 FORM",
        "make one library, which computes in the recipe's float16, or reads its float16 as "
        f"words and computes in float32: {', '.join(float16_forms())}",
        type=float16_form,
    )
    modalities: tuple[str, ...] | None = _CONTENTS.option(
        MODALITIES[:1],
        "--modalities LIST",
        f"what the package takes, with commas: {', '.join(MODALITIES)}, or `{ALL}` that the "
        f"checkpoint has (default: {MODALITIES[0]})",
        type=parse_modalities,
    )
    image_tokens: int | None = _CONTENTS.option(
        None,
        "--image-tokens N",
        "most tokens of a picture that the package has room for, of "
        f"{', '.join(map(str, BUDGETS))} (default: {DEFAULT_BUDGET})",
    )
    image_shape: str = _CONTENTS.option(
        WIDE,
        "--image-shape SHAPE",
        "what the stock client stretches a picture to: wide, 960 x 672 pixels, or square, 768 "
        "x 768 (default: %(default)s)",
        type=parse_image_shape,
    )
    drafter: str | None = _CONTENTS.option(
        None,
        "--drafter ID_OR_DIR",
        "put the model's drafter into the package, which drafts tokens ahead: the hub id "
        "(such as google/gemma-4-E2B-it-assistant; with @REVISION a branch, tag or commit) or "
        "directory of its checkpoint; `tiny` for `tiny`'s own",
        type=non_empty,
    )
    tokenizer: str | None = _CONTENTS.option(
        None,
        "--tokenizer ID_OR_DIR",
        "of a model in GGUF: the hub id (with @REVISION a branch, tag or commit) or directory "
        "of the checkpoint that it was made from, for its tokenizer, chat template and sampling "
        "(default: those of the file)",
        type=non_empty,
    )
    context: int | None = _SIZES.option(
        None,
        "--context N",
        f"longest sequence in tokens (default: {DEFAULT_CONTEXT_LENGTH}, or the model's)",
    )
    prefill_chunk: int | None = _SIZES.option(
        None,
        "--prefill-chunk N",
        f"tokens of one prefill step (default: {DEFAULT_PREFILL_CHUNK}, or the context)",
    )

    fit: str | None = _SIZES.option(
        None,
        "--fit MEMORY",
        "choose recipe, context, prefill chunk and libraries, as far as they are not given, so "
        "that all fits into a device's memory: 8GB, 1.4GiB, or a device's name from --plan",
        type=parse_fit,
    )

    @property
    def library_names(self) -> tuple[str, ...]:
        """Names of the libraries that are made, the main one first.

        None are named where --limits, --activations or --float16 describe the only one.
        """
        return () if self._of_one() else libraries_of(self.target, self.libraries)

    def _of_one(self) -> list[str]:
        """The options that describe the only library."""
        return given(self, ("limits", "activations", "float16"))

    def check_package(self) -> None:
        """Raise UsageError for what does not fit together."""
        for one in self._of_one():
            check_one(one, self.target, self.libraries)
        check_limits(self.limits, self.target)
        if self.float16 is not None:
            check_float16(self.float16, self.target[0])
        libraries_of(self.target, self.libraries)
        check_image_tokens(self.image_tokens)
        if self.fit is not None:
            budget_of(self.fit, self.target)
        pictures = given(self, ("image_tokens", "image_shape"))
        if pictures and self.modalities is not None and "image" not in self.modalities:
            raise UsageError(
                f"{pictures[0]} is for packages that take pictures",
                hint="add --modalities text,image",
            )
