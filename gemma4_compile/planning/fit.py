"""What fits into a budget of memory: the choices that there are, and the order of giving up.

A build has several sizes that memory depends on. Each is a ladder, from the best to the least; what
the user gave is a ladder of one step. Of all combinations that fit, the one that gives up least is
taken, and what is given up first is what a reply misses least (docs/options.md, ADR 0026).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from gemma4_compile.options.package import DEFAULT_QUANT, TRAINED_QUANT

StepT = TypeVar("StepT")

QUANTS = ("q4f16m", DEFAULT_QUANT, TRAINED_QUANT, "q4f16s")
"""Recipes, from the one that loses least of a checkpoint that was trained for none of them.

Others have no step, for the reasons in ADR 0026.
"""
USUAL_QUANT = DEFAULT_QUANT
TRAINED_QUANTS = ("q4f16s",)
"""Of checkpoints that were trained for 4 bits: these hold their weights exactly, in the fewest."""
USUAL_CONTEXT, GOOD_CONTEXT, LEAST_CONTEXT = 8192, 4096, 2048
USUAL_CHUNK, LEAST_CHUNK = 512, 64


@dataclass(frozen=True)
class Choice:
    """One combination.

    Attributes
    ----------
    quant : a recipe's name
    libraries : names; none for the only one that options describe
    table_on_host : the per-layer embedding table is in the host's memory
    experts : share of the experts on the device, the rest in the host's memory
    """

    quant: str
    libraries: tuple[str, ...]
    context: int
    chunk: int
    table_on_host: bool = False
    experts: float = 1.0


@dataclass(frozen=True)
class Ladders:
    """Steps of each choice, from the best to the least.

    Attributes
    ----------
    usual_quant : the recipe that is worth giving other things up for; better ones take what is left
    """

    quants: tuple[str, ...]
    libraries: tuple[tuple[str, ...], ...]
    contexts: tuple[int, ...]
    chunks: tuple[int, ...]
    tables_on_host: tuple[bool, ...] = (False,)
    experts: tuple[float, ...] = (1.0,)
    usual_quant: str = USUAL_QUANT

    def choices(self) -> list[Choice]:
        """All combinations, from the one that gives up nothing to the smallest.

        Experts that are read over a bus have no better recipe than the usual: it would take twice
        as long.
        """
        places = product(self.tables_on_host, self.experts)
        steps = product(self.quants, self.libraries, self.contexts, self.chunks, places)
        found = [
            Choice(quant, libraries, context, min(chunk, context), *place)
            for quant, libraries, context, chunk, place in steps
            if place[1] == self.experts[0] or quant not in self.quants[: self._usual()]
        ]
        return sorted(dict.fromkeys(found), key=self.given_up)

    def given_up(self, choice: Choice) -> tuple[int, ...]:
        """Steps that a choice gives up, the most reluctant first: the least tuple is the best.

        Answers come first: a context that holds a conversation, then the recipe, then the usual
        context. Before those go what costs devices, the time of a prompt, or a little of a token's;
        a better recipe and a longer context than the usual ones only take what is left. Experts
        leave the device where nothing else helps, and then no further than the rest asks for.
        """
        usual = self._usual()
        quant, context = self.quants.index(choice.quant), choice.context
        return (
            sum(context < one <= GOOD_CONTEXT for one in self.contexts),
            int(choice.experts != self.experts[0]),
            max(quant - usual, 0),
            sum(context < one <= USUAL_CONTEXT for one in self.contexts),
            self.libraries.index(choice.libraries),
            sum(choice.chunk < min(one, context) for one in self.chunks),
            self.tables_on_host.index(choice.table_on_host),
            self.experts.index(choice.experts),
            min(quant, usual),
            sum(max(context, USUAL_CONTEXT) < one for one in self.contexts),
        )

    def _usual(self) -> int:
        """The place of the usual recipe; 0 where there is no choice of it."""
        return self.quants.index(self.usual_quant) if self.usual_quant in self.quants else 0

    def better(self, choice: Choice) -> Iterator[tuple[str, Choice]]:
        """By the name of each choice that gave something up, what it was before, the rest alike.

        Of a recipe or context beyond the usual, that is the next better; else the usual.
        """
        quant = _better(self.quants, choice.quant, self.usual_quant)
        context = _better(self.contexts, choice.context, USUAL_CONTEXT)
        others = {
            "recipe": replace(choice, quant=quant),
            "libraries": replace(choice, libraries=self.libraries[0]),
            "context": replace(choice, context=context),
            "prefill_chunk": replace(choice, chunk=min(self.chunks[0], choice.context)),
            "per_layer_table": replace(choice, table_on_host=self.tables_on_host[0]),
            "experts": replace(choice, experts=self.experts[0]),
        }
        yield from ((name, other) for name, other in others.items() if other != choice)


def _better(steps: Sequence[StepT], chosen: StepT, usual: StepT) -> StepT:
    """The usual step where a chosen one is below it, else the next above; itself if none is."""
    at = steps.index(chosen)
    if usual in steps[:at]:
        return usual
    return steps[max(at - 1, 0)]


def quants_for(usual: str, *, is_trained: bool) -> tuple[str, ...]:
    """The recipes of a checkpoint whose usual one is `usual`, from the best to the smallest.

    `q4f16` takes more bytes than `q4kf16`, and loses more: it has no step beside it. Of weights on
    16 levels, which `q4f16` holds, minima would lose some.
    """
    if is_trained:
        return TRAINED_QUANTS
    other = TRAINED_QUANT if usual == DEFAULT_QUANT else DEFAULT_QUANT
    return tuple(name for name in QUANTS if name != other)


def first_fit(ladders: Ladders, fits: Callable[[Choice], bool]) -> Choice | None:
    """The choice that gives up least of those that fit; None if none does."""
    return next((choice for choice in ladders.choices() if fits(choice)), None)


def contexts_for(longest: int) -> tuple[int, ...]:
    """Contexts of a model, from its longest down: powers of two from the least on."""
    powers = [1 << bits for bits in range(LEAST_CONTEXT.bit_length() - 1, 63)]
    shorter = [one for one in powers if one < longest]
    return (longest, *reversed(shorter))


def chunks_for(rows: int) -> tuple[int, ...]:
    """Prefill chunks, from the usual down; first `rows` that none may cut, where they are more."""
    halves = []
    chunk = USUAL_CHUNK
    while chunk >= LEAST_CHUNK:
        halves.append(chunk)
        chunk //= 2
    return (*((rows,) if rows > USUAL_CHUNK else ()), *halves)
