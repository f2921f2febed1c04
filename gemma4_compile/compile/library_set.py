"""What a request makes: the libraries of a package, each with its target, recipe and plan."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_compile.compile.compilation import LibraryPlan
from gemma4_compile.compile.resolve import Choices, Sizes
from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.package.libraries import library_file
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.planning.plan_report import LibraryNeeds
from gemma4_compile.planning.recipe_plan import RecipePlan


def library_plans(
    chosen: Choices,
    sizes: Sizes,
    config: Gemma4Config,
    contexts: Sequence[int] = (),
    recipes: tuple[RecipePlan, ...] | None = None,
) -> tuple[LibraryPlan, ...]:
    """Plan every library that is made, over one set of shards; nothing is refused here.

    Parameters
    ----------
    contexts : further context lengths to show the state's memory at
    recipes : the chosen one at least, where it is planned already; None for all
    """
    plans: list[LibraryPlan] = []
    for one in chosen.libraries:
        numbers = make_plan(
            config,
            one.recipe,
            one.target,
            sizes.context_length,
            sizes.prefill_chunk,
            contexts,
            image_tokens=sizes.image_tokens,
            splits=chosen.splits,
            recipes=plans[0].numbers.recipes if plans else recipes,
        )
        plans.append(LibraryPlan(one.name, one.target, one.recipe, numbers))
    return tuple(plans)


def check_plans(plans: Sequence[LibraryPlan]) -> None:
    """Refuse libraries that cannot be built; errors as `BuildPlan.check`.

    Where not all of several libraries are in the way, or each by another amount, the hint names
    those that take more: a library that computes in float32 has keys and values of twice the size.
    """
    problems = {plan.name: error for plan in plans if (error := _problem(plan)) is not None}
    if not problems:
        return
    error = next(iter(problems.values()))
    by_hint: dict[str, list[str]] = {}
    for name, problem in problems.items():
        by_hint.setdefault(problem.hint or "", []).append(name)
    fitting = [plan.name for plan in plans if plan.name not in problems]
    others = list(by_hint.items())[1:]
    ways = [error.hint] if error.hint else []
    ways += [f"with --libraries {','.join(names)} {hint}" for hint, names in others if hint]
    if fitting:
        ways.append(
            f"without {', '.join(problems)} it can be built: --libraries {','.join(fitting)}"
        )
    raise type(error)(str(error), hint="; ".join(ways) or None)


def _problem(plan: LibraryPlan) -> Gemma4CompileError | None:
    try:
        plan.numbers.check()
    except Gemma4CompileError as error:
        return error
    return None


def needs_of(plans: Sequence[LibraryPlan]) -> list[LibraryNeeds]:
    """What each library needs, for a report of the plan."""
    return [
        LibraryNeeds(
            name=plan.name,
            file=library_file(plan.name, plan.target.library_suffix, main=not index),
            float16=plan.target.float16 if plan.recipe.has_float16 else None,
            plan=plan.numbers,
        )
        for index, plan in enumerate(plans)
    ]
