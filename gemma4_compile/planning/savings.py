"""What each choice would save of a plan's memory, the rest as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.planning.expert_shares import expert_shares
from gemma4_compile.planning.fit import LEAST_CHUNK, LEAST_CONTEXT, QUANTS
from gemma4_compile.planning.memory_parts import bytes_with_table_on_host, memory_parts
from gemma4_compile.planning.plan import BuildPlan, make_plan
from gemma4_compile.quantization.schemes import NAMED
from gemma4_compile.targets.spec import WORDS

_HALVES = 2
"""Contexts and chunks that are shown, each half of the one before."""
_SHARES = (0.75, 0.5, 0.0)


@dataclass(frozen=True)
class Saving:
    """A choice in the words of the options, what it saves of a device's memory, and at what cost.

    Attributes
    ----------
    runs : it is an option of `gemma4-chat` and `gemma4-serve`, not of the compilation
    """

    option: str
    saves_bytes: int
    costs: str
    runs: bool = False


def savings(plan: BuildPlan, libraries: Sequence[tuple[str, BuildPlan]] = ()) -> list[Saving]:
    """What would save memory of a plan; nothing of one that its recipe cannot store.

    Parameters
    ----------
    libraries : all of the package by name, the plan's among them; it needs what the largest does
    """
    if plan.recipe.problem is not None:
        return []
    found = [*_recipes(plan), *_sizes(plan), *_places(plan), *_parts(plan), *_libraries(libraries)]
    return [one for one in found if one.saves_bytes > 0]


def _recipes(plan: BuildPlan) -> Iterator[Saving]:
    chosen = plan.recipe.name
    for one in plan.recipes:
        if one.problem is None:
            less = plan.recipe.weights_bytes - one.weights_bytes
            yield Saving(f"--quant {one.name}", less, _exactness(chosen, one.name))


def _exactness(chosen: str, other: str) -> str:
    """What another recipe costs, as far as the order of giving up says which is more exact."""
    if chosen not in QUANTS or other not in QUANTS:
        return "another exactness (docs/numerics.md)"
    is_better = QUANTS.index(other) < QUANTS.index(chosen)
    return "nothing: it is more exact" if is_better else "exactness (docs/numerics.md)"


_LONG = {False: "conversations", True: "texts"}


def _sizes(plan: BuildPlan) -> Iterator[Saving]:
    """Shorter contexts and chunks."""
    context, chunk = plan.context_length, plan.prefill_chunk
    encodes = plan.config.embedding is not None
    for _ in range(_HALVES):
        context //= 2
        if context < LEAST_CONTEXT:
            break
        less = plan.device_memory_bytes - _planned(plan, context, min(chunk, context))
        yield Saving(f"--context {context}", less, f"longer {_LONG[encodes]}")
    if encodes:
        return  # which reads a text in one chunk
    for _ in range(_HALVES):
        chunk //= 2
        if chunk < LEAST_CHUNK:
            break
        less = plan.device_memory_bytes - _planned(plan, plan.context_length, chunk)
        yield Saving(f"--prefill-chunk {chunk}", less, "time of a prompt")


def _planned(plan: BuildPlan, context: int, chunk: int) -> int:
    """Memory of the plan with other sizes."""
    recipe = NAMED[plan.recipe.name]
    other = make_plan(
        plan.config,
        recipe.computed_in("float32") if plan.target.float16 == WORDS else recipe,
        plan.target,
        context,
        chunk,
        image_tokens=plan.image_tokens,
        recipes=plan.recipes,
    )
    return other.device_memory_bytes


def _places(plan: BuildPlan) -> Iterator[Saving]:
    """What the host can hold."""
    without = bytes_with_table_on_host(plan)
    if without is not None and not is_of_pages(plan.target.device):
        less = plan.device_memory_bytes - without
        yield Saving("--ple host", less, "a little of a token's time", runs=True)
    for one in expert_shares(plan, _SHARES):
        yield Saving(f"--experts {one.share:.0%}", one.host_bytes, "a token's time", runs=True)


def _parts(plan: BuildPlan) -> Iterator[Saving]:
    """What need not be in the package."""
    parts = memory_parts(plan)
    towers = sum(parts.get(part, 0) for part in ("vision", "audio"))
    yield Saving("--modalities text", towers, "pictures and sounds")
    yield Saving("without --drafter", parts.get("drafter", 0), "drafts ahead")


def _libraries(libraries: Sequence[tuple[str, BuildPlan]]) -> Iterator[Saving]:
    """The libraries that do not compute in float32, which have smaller keys and values."""
    exact = [(name, plan) for name, plan in libraries if plan.target.float16 != WORDS]
    if not exact:
        return
    most, least = (max(plan.device_memory_bytes for _, plan in some) for some in (libraries, exact))
    names = ",".join(name for name, plan in libraries if plan.target.float16 == WORDS)
    costs = "devices without shader-f16"
    yield Saving(f"--libraries without {names}", most - least, costs)
