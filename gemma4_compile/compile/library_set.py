"""What a request makes: the libraries of a package, each with its target, recipe and plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gemma4_compile import abi
from gemma4_compile.compile.compilation import LibraryPlan
from gemma4_compile.compile.request import AUTO, CompileRequest, image_tokens
from gemma4_compile.errors import ArtifactError, Gemma4CompileError, UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.options import compile as options
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.libraries import library_file
from gemma4_compile.package.partial_build import SHARD_SIZE
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.planning.plan_report import LibraryNeeds
from gemma4_compile.quantization.recipe import Recipe
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import TARGETS, TargetSpec, strictest, target_spec
from gemma4_compile.targets.libraries import LibraryForm, form_name
from gemma4_compile.targets.spec import ACTIVATIONS, FLOAT, INT8, NATIVE, WORDS


def target_and_recipe(request: CompileRequest) -> tuple[TargetSpec, Recipe]:
    """Return the target, with its activations, and the recipe; UsageError for unknown ones.

    Of several libraries it is the main one's.
    """
    form = requested_forms(request)[0]
    target = target_spec(form.target, form.limits)
    recipe = with_overrides(request.quant, request.overrides)
    float16 = form.float16 if recipe.has_float16 else NATIVE
    if float16 == WORDS:
        recipe = recipe.computed_in("float32")
    target = replace(target, float16=float16)
    return replace(target, activations=_activations(form.activations, target, recipe)), recipe


def _activations(given: str, target: TargetSpec, recipe: Recipe) -> str:
    """Form of activations: the user's choice, or else the one of the target's limits."""
    wanted = options.OLD_ACTIVATIONS.get(given, given)
    if wanted not in (AUTO, *ACTIVATIONS):
        raise UsageError(
            f"unknown activations `{wanted}`",
            hint=f"known: {AUTO}, {', '.join(ACTIVATIONS)}",
        )
    if wanted == INT8 and not recipe.takes_int8:
        others = [other.name for other in RECIPES.values() if other.takes_int8]
        raise UsageError(
            f"--activations int8: recipe `{recipe.name}` stores no integer weights for them",
            hint=f"choose --quant {', '.join(others)}, or --activations float",
        )
    if wanted not in (AUTO, *target.activation_forms):
        raise UsageError(
            f"--activations {wanted}: target `{target.name}` has no such kernels",
            hint=f"it has: {', '.join(target.activation_forms)}",
        )
    if wanted == AUTO:
        return target.activations if recipe.takes_int8 else FLOAT
    return wanted


def requested_forms(request: CompileRequest) -> tuple[LibraryForm, ...]:
    """The libraries that a request names; the one of its own fields where it names none."""
    if request.libraries:
        return request.libraries
    fields = (request.target, request.limits, request.activations, request.float16)
    return (LibraryForm("", *fields),)


def library_plans(
    request: CompileRequest,
    config: Gemma4Config,
    context: int,
    chunk: int,
    contexts: Sequence[int] = (),
) -> tuple[LibraryPlan, ...]:
    """Plan every library that a request makes, over one set of shards; nothing is refused here.

    Parameters
    ----------
    contexts : further context lengths to show the state's memory at
    """
    forms = requested_forms(request)
    made = [target_and_recipe(replace(request, libraries=(form,))) for form in forms]
    specs = [*(target for target, _ in made), *_targets_there(request)]
    splits = _splitting(specs, request.shard_bytes)
    tokens = image_tokens(request, config)
    plans: list[LibraryPlan] = []
    for form, (target, recipe) in zip(forms, made, strict=True):
        float16 = target.float16 if recipe.has_float16 else None
        said = target.name, target.limits, target.activations, float16
        numbers = make_plan(
            config,
            recipe,
            target,
            context,
            chunk,
            contexts,
            image_tokens=tokens,
            splits=splits,
            recipes=plans[0].numbers.recipes if plans else None,
        )
        plans.append(LibraryPlan(form.name or form_name(*said), target, recipe, numbers))
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


def with_shard_size(request: CompileRequest) -> CompileRequest:
    """The request with the size of shards of the package that it goes on with, if it names none."""
    there = _there(request)
    if there is None or request.shard_bytes is not None:
        return request
    return replace(request, shard_bytes=_shard_bytes(there))


def _there(request: CompileRequest) -> Provenance | None:
    """The package that a partial build goes on with."""
    path = request.output / abi.PROVENANCE_FILE
    if request.only is None or request.force or not path.is_file():
        return None
    return Provenance.from_json(read_artifact(path))


def _targets_there(request: CompileRequest) -> list[TargetSpec]:
    """Targets of the package that a partial build goes on with: its shards are split for them."""
    there = _there(request)
    return [] if there is None else package_targets(there)


def _shard_bytes(provenance: Provenance) -> int | None:
    said = provenance.build.get(SHARD_SIZE)
    return said if type(said) is int else None


def _splitting(specs: Sequence[TargetSpec], shard_bytes: int | None) -> TargetSpec:
    """The target whose bindings split large tensors; by shards as well, for one holds a tensor."""
    target = strictest(specs)
    if shard_bytes is None:
        return target
    most = min(target.max_binding_bytes or shard_bytes, shard_bytes)
    return replace(target, max_binding_bytes=most)


def package_splits(provenance: Provenance) -> TargetSpec:
    """The target whose bindings split the tensors of a package; errors as `package_targets`."""
    return _splitting(package_targets(provenance), _shard_bytes(provenance))


def package_targets(provenance: Provenance) -> list[TargetSpec]:
    """Targets of a package's libraries; of one without a library, the target of its build.

    ArtifactError names a field that is none of this program's.
    """
    build = provenance.build
    named = [(one.target, one.limits) for one in provenance.libraries]
    specs = []
    for target, limits in named or [(str(build.get("target")), str(build.get("limits")))]:
        found = TARGETS.get(target)
        if found is None or limits not in found.limits:
            field = "target" if found is None else "limits"
            raise ArtifactError(
                f"`{abi.PROVENANCE_FILE}`: field `{field}` is damaged",
                hint="compile the package again",
            )
        specs.append(found.limits[limits])
    return specs
