"""`gemma4-verify MODEL --fit-bits BITS`: the recipe of a size that loses little on a checkpoint.

What a part of the decoder loses in 4 bits is measured with everything else in 8. Of the sets of
parts that have room for 8 bits the one is chosen whose parts lose most in all. That losses add up
is an assumption: the recipe itself is measured at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING

from gemma4_compile.checkpoint.sources import ModelSource
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Parameter
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.progress import Reporter
from gemma4_compile.quantization.recipe import Recipe, storage_plan
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.types import JsonObject
from gemma4_compile.verification.frontier import RecipeCost
from gemma4_compile.verification.parts import FOUR, Part, parts_of, recipe_schemes
from gemma4_compile.verification.recipe_runs import RecipeRuns, Subject, open_runs

if TYPE_CHECKING:  # it needs torch and transformers
    from gemma4_compile.verification.form_measures import FormMeasures

SCHEMA, SCHEMA_VERSION = "gemma4_compile.fit", 1
BASE = "q8f16"
STATE_BYTES = 2 << 30
"""Of what waits between two layers: more recipes than have room in it are run in several passes."""
_DIGITS = 1000  # that a range is said in


@dataclass(frozen=True, kw_only=True)
class FitRequest(Subject):
    """A checkpoint, and the stored bits of a weight of its decoder, at most."""

    bits: float


@dataclass(frozen=True)
class Sizes:
    """Bytes of a decoder.

    Attributes
    ----------
    fixed : norms, scalars and routers
    weights : all of them, those as well
    """

    parts: tuple[Part, ...]
    fixed: int
    weights: int

    @classmethod
    def of(cls, config: Gemma4Config) -> Sizes:
        """The sizes of a model's decoder."""
        table = parameter_table(config)
        parts = parts_of(table, config.num_hidden_layers)
        stored = storage_plan(table, with_overrides(BASE, ()), None)
        whole = sum(tensor.nbytes for one in stored for tensor in one.tensors)
        return cls(
            parts,
            whole - sum(part.bytes[1] for part in parts),
            sum(prod(one.shape) for one in table),
        )

    def bits(self, nbytes: int) -> float:
        """Bits of a weight, where all of them take so many bytes."""
        return 8 * nbytes / self.weights

    @property
    def least(self) -> int:
        """Bytes with every part in 4 bits."""
        return self.fixed + sum(part.bytes[0] for part in self.parts)

    @property
    def most(self) -> int:
        """Bytes with every part in 8 bits."""
        return self.fixed + sum(part.bytes[1] for part in self.parts)

    def room(self, bits: float) -> int:
        """Bytes that parts in 8 bits may take besides those of 4.

        Raises
        ------
        UsageError
            If there are fewer bits than every part in 4 takes, or more than all in 8.
        """
        low = math.ceil(self.bits(self.least) * _DIGITS) / _DIGITS
        high = math.floor(self.bits(self.most) * _DIGITS) / _DIGITS
        if not low <= bits <= high:
            raise UsageError(
                f"--fit-bits: expected {low:g} to {high:g} bits a weight of this model, found "
                f"{bits:g}",
                hint=f"{low:g} is everything in 4 bits with its scales, {high:g} everything in 8",
            )
        return math.floor(bits * self.weights / 8) - self.least


@dataclass(frozen=True)
class Sensitivity:
    """What a part loses in 4 bits.

    Attributes
    ----------
    kl_mean : divergence of the model with this part in 4 bits and the others in 8
    loss : how much of it is this part's; below 0 where 4 bits hold it better than 8
    """

    part: Part
    kl_mean: float
    loss: float


def choose(sensitivities: Sequence[Sensitivity], room: int) -> frozenset[Part]:
    """Parts that have 8 bits: those whose losses are most in all, of the sets that have room.

    Of two such sets the one of fewer bytes; a part that 8 bits do not help has 4.
    """
    sets: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]  # bytes, losses, which parts
    for index, one in enumerate(sensitivities):
        if one.loss <= 0:
            continue
        larger = [
            (nbytes + one.part.more_bytes, losses + one.loss, (*chosen, index))
            for nbytes, losses, chosen in sets
            if nbytes + one.part.more_bytes <= room
        ]
        best = -math.inf
        every, sets = sorted([*sets, *larger], key=lambda each: (each[0], -each[1], each[2])), []
        for each in every:  # one that takes more and saves no more cannot become the best
            if each[1] > best:
                sets.append(each)
                best = each[1]
    return frozenset(sensitivities[index].part for index in sets[-1][2])


@dataclass(frozen=True)
class Fit:
    """A recipe that was chosen.

    Attributes
    ----------
    subject : what was run, of what and with what
    bits : asked for
    base_kl : divergence with every part in 8 bits
    recipe : content of its file
    found : what it costs, measured; sizes are the decoder's
    """

    subject: JsonObject
    bits: float
    sizes: Sizes
    base_kl: float
    sensitivities: tuple[Sensitivity, ...]
    eight: frozenset[Part]
    recipe: JsonObject
    found: RecipeCost

    def to_json(self) -> JsonObject:
        """Content of the report: no times, no paths."""
        sizes = self.sizes
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            **self.subject,
            "fit_bits": self.bits,
            "range": [sizes.bits(sizes.least), sizes.bits(sizes.most)],
            "kl_mean_of_8_bits": self.base_kl,
            "parts": [
                {
                    "name": one.part.name,
                    "weights": one.part.weights,
                    "bytes_of_4_bits": one.part.bytes[0],
                    "bytes_of_8_bits": one.part.bytes[1],
                    "kl_mean_of_4_bits": one.kl_mean,
                    "loss": one.loss,
                    "bits": 8 if one.part in self.eight else 4,
                }
                for one in self.sensitivities
            ],
            "recipe": self.recipe,
            "found": asdict(self.found),
        }


def fit_bits(request: FitRequest, reporter: Reporter) -> Fit:
    """Choose the recipe of a size for a checkpoint.

    Raises
    ------
    Gemma4CompileError
        If the size cannot be, or something is missing, damaged or does not fit.
    """

    def check(source: ModelSource, table: Sequence[Parameter]) -> None:
        Sizes.of(source.config).room(request.bits)

    with open_runs(request, reporter, check) as runs:
        sizes = Sizes.of(runs.config)
        alone = [dict.fromkeys(part.names, FOUR.name) for part in sizes.parts]
        recipes = [with_overrides(BASE, tuple(schemes.items())) for schemes in ({}, *alone)]
        base, *found = (one.all.kl_mean for one in _measure(runs, recipes, reporter))
        sensitivities = tuple(
            Sensitivity(part, kl_mean, kl_mean - base)
            for part, kl_mean in zip(sizes.parts, found, strict=True)
        )
        eight = choose(sensitivities, sizes.room(request.bits))
        schemes = recipe_schemes(sizes.parts, eight)
        recipe = with_overrides(BASE, tuple(schemes.items()))
        (measures,) = _measure(runs, [recipe], reporter)
        plan = storage_plan(parameter_table(runs.config), recipe, None)
        return Fit(
            subject=runs.subject,
            bits=request.bits,
            sizes=sizes,
            base_kl=base,
            sensitivities=sensitivities,
            eight=eight,
            recipe={"schemes": schemes},
            found=RecipeCost.of("fit", recipe, plan, runs.config, measures),
        )


def _measure(
    runs: RecipeRuns, recipes: Sequence[Recipe], reporter: Reporter
) -> Iterator[FormMeasures]:
    """Measure recipes, as many at a time as have room in STATE_BYTES, at least one."""
    count = 1
    while count < len(recipes) and runs.state_bytes(count + 2) <= STATE_BYTES:
        count += 1
    for begin in range(0, len(recipes), count):
        yield from runs.measure(recipes[begin : begin + count], reporter)
