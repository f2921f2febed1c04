"""`--fit`: a request whose recipe, libraries and sizes are chosen for a budget of device memory.

What was given stays. Only the config is read, so that nothing is downloaded for what will not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gemma4_compile.checkpoint.sources import ModelSource
from gemma4_compile.compile.compilation import LibraryPlan
from gemma4_compile.compile.fit_memory import Memory, can_leave_table, on_host
from gemma4_compile.compile.own_schemes import with_own_schemes
from gemma4_compile.compile.planned_source import open_for_plan
from gemma4_compile.compile.request import CompileRequest, with_quant
from gemma4_compile.compile.resolve import choose, package_there, sizes_of
from gemma4_compile.compile.usual_recipe import with_usual_recipe
from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import ALL_COMPONENTS
from gemma4_compile.options.budget import Budget, size_for
from gemma4_compile.options.package import MOBILE
from gemma4_compile.options.process import without_warnings
from gemma4_compile.planning.expert_shares import SHARES, expert_shares
from gemma4_compile.planning.fit import (
    Choice,
    Ladders,
    chunks_for,
    contexts_for,
    first_fit,
    quants_for,
)
from gemma4_compile.planning.fit_report import Fitted, Step
from gemma4_compile.planning.plan_report import size
from gemma4_compile.quantization.recipe_file import check_overrides
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets.devices import typical_devices
from gemma4_compile.targets.spec import WORDS


def fit_model(request: CompileRequest, known_as: str | None = None) -> CompileRequest:
    """The request with all that its budget chooses; itself without one.

    Parameters
    ----------
    known_as : the model that is meant, where the request names what has its config alone

    Raises
    ------
    UsageError
        If nothing fits: the smallest that would, and by how much it does not.
    Gemma4CompileError
        As `plan_model`, of what cannot be built whatever is chosen.
    """
    budget = request.fit
    if budget is None:
        return request
    choose(request)  # what is wrong with the options comes first
    request = _of_package_there(request)
    # The model is opened again, for what was chosen, and warns then.
    with without_warnings(), open_for_plan(request) as source:
        return _fitted(request, budget, source, known_as or request.model)


def _fitted(
    request: CompileRequest, budget: Budget, source: ModelSource, model: str
) -> CompileRequest:
    """The same of a source that is open."""
    if source.config.embedding is not None:
        raise UsageError(
            "--fit: an encoder keeps nothing that could be left out for a budget",
            hint="leave it out: --plan shows what `--context` and `--quant` change",
        )
    request = with_usual_recipe(request, source, model)
    table = model_parameters(source.config, ALL_COMPONENTS)
    check_overrides(choose(request).recipe, table)
    known = request
    if request.quant == MOBILE:  # others only warn there, which the compilation does
        known = with_own_schemes(request, source, table)
    memory = Memory(known, source.config)
    ladders = ladders_of(memory, budget)
    chosen = first_fit(ladders, lambda choice: memory.fits(choice, budget.room_bytes))
    if chosen is None:
        raise _too_large(memory, ladders, budget)
    given = set(request.fit_keeps)
    if request.quant == MOBILE and request.usual is not None:
        given.discard("recipe")  # it is the only one, and nobody named it
    steps = {name: Step(value, name in given) for name, value in _values(chosen, ladders).items()}
    needs = memory.bytes_of(chosen)
    for name, other in ladders.better(chosen):
        problem = memory.problem(other)
        steps[name] = replace(
            steps[name],
            instead_of=_values(other, ladders)[name],
            saves_bytes=memory.bytes_of(other) - needs,
            problem=None if problem is None else str(problem),
        )
    main = next(iter(memory.plans(chosen).values())).numbers
    sizes = budget.total_bytes, budget.margin_bytes
    fitted = Fitted(*sizes, budget.device, needs, steps, on_host(main, chosen))
    return replace(memory.request_of(chosen, request), fit=None, fitted=fitted.to_json())


def _of_package_there(request: CompileRequest) -> CompileRequest:
    """The request with the recipe and sizes of the package that a partial build goes on with."""
    there = package_there(request)
    if there is None:
        return request
    build, keeps = there.build, request.fit_keeps
    asked, named = request, set(keeps)
    if request.context_length is None and type(build.get("context_length")) is int:
        asked = replace(asked, context_length=build["context_length"])
        named.add("context")
    if request.prefill_chunk is None and type(build.get("prefill_chunk")) is int:
        asked = replace(asked, prefill_chunk=build["prefill_chunk"])
        named.add("prefill_chunk")
    if "recipe" not in keeps and build.get("recipe") in RECIPES:
        asked = with_quant(asked, str(build["recipe"]))
        named.add("recipe")
    return replace(asked, fit_keeps=frozenset(named))


def ladders_of(memory: Memory, budget: Budget) -> Ladders:
    """The steps of a request: one of what was given, and libraries that the device runs.

    Raises
    ------
    UsageError
        For sizes that the model does not take, and where the device runs none of the libraries.
    """
    request, config = memory.request, memory.config
    keeps, sizes = request.fit_keeps, sizes_of(request, config)
    quants: tuple[str, ...] = (request.quant,)
    if "recipe" not in keeps:
        is_trained = request.usual is not None and request.usual.is_trained
        quants = quants_for(request.quant, is_trained=is_trained)
    contexts: tuple[int, ...] = (sizes.context_length,)
    chunks: tuple[int, ...] = (sizes.prefill_chunk,)
    if request.context_length is None:
        contexts = contexts_for(config.max_position_embeddings)
    if request.prefill_chunk is None:
        has_whole_pictures = config.vision is not None and config.bidirectional_images
        chunks = chunks_for(sizes.image_tokens if has_whole_pictures else 0)
    first = Choice(quants[-1], _names(request), contexts[-1], min(chunks[-1], contexts[-1]))
    names = first.libraries
    if budget.device is not None and "libraries" not in keeps:
        names = _that_run(memory.plans(first), names, budget.device)
    libraries = [names]
    exact = tuple(one.name for one in request.libraries if one.float16 != WORDS)
    fewer = tuple(name for name in names if name in exact)
    if "libraries" not in keeps and fewer and fewer != names:
        libraries.append(fewer)
    plans = [plan.numbers for plan in memory.plans(first).values()]
    tables = (False, True) if all(map(can_leave_table, plans)) else (False,)
    shares = SHARES if all(map(expert_shares, plans)) else SHARES[:1]
    return Ladders(quants, tuple(libraries), contexts, chunks, tables, shares, request.quant)


def _names(request: CompileRequest) -> tuple[str, ...]:
    return tuple(one.name for one in request.libraries)


def _that_run(
    plans: Mapping[str, LibraryPlan], names: tuple[str, ...], device: str
) -> tuple[str, ...]:
    """Names of the libraries that a device runs, whatever memory they take.

    UsageError for none. Libraries of other targets than those that have such a device stay.
    """
    lacking: dict[str, tuple[str, ...]] = {}
    for name in names:
        plan = plans[name]
        for one in typical_devices(plan.target.name):
            if one.name == device:
                lacking[name] = one.lacks(replace(plan.numbers.requirements, memory_bytes=0))
    running = tuple(name for name in names if not lacking.get(name))
    if names and not running:
        reasons = "; ".join(f"{name}: {', '.join(lacks)}" for name, lacks in lacking.items())
        raise UsageError(
            f"--fit: `{device}` runs none of the libraries ({reasons})",
            hint="choose another device, or give its memory as a size",
        )
    return running


def _values(choice: Choice, ladders: Ladders) -> dict[str, object]:
    """A choice as provenance has it, by the name of what was chosen.

    Places are there for models and targets that have a choice of them, in the words of the options.
    """
    table = {"per_layer_table": "host" if choice.table_on_host else "gpu"}
    experts = {"experts": f"{choice.experts:.0%}"}
    return {
        "recipe": choice.quant,
        "context": choice.context,
        "prefill_chunk": choice.chunk,
        **({"libraries": list(choice.libraries)} if choice.libraries else {}),
        **(table if ladders.tables_on_host[1:] else {}),
        **(experts if ladders.experts[1:] else {}),
    }


def _too_large(memory: Memory, ladders: Ladders, budget: Budget) -> Gemma4CompileError:
    """Why nothing fits: the smallest that can be built, or why none can."""
    choices = ladders.choices()
    sizes = {choice: memory.bytes_of(choice) for choice in choices}
    for choice in sorted(choices, key=lambda one: (sizes[one], ladders.given_up(one))):
        if memory.problem(choice) is None:
            needs = sizes[choice]
            break
    else:
        problem = memory.problem(choices[0])
        assert problem is not None, "else it could be built"
        return problem
    words = [f"{choice.quant}, context {choice.context:,}, prefill chunk {choice.chunk:,}"]
    if len(ladders.libraries) > 1 and choice.libraries == ladders.libraries[-1]:
        words.append("without the libraries that compute in float32")
    if choice.table_on_host:
        words.append("the per-layer table on the host")
    if choice.experts < 1:
        words.append(f"{choice.experts:.0%} of the experts on the device")
    room = max(budget.room_bytes, 0)
    left = f" ({size(budget.margin_bytes)} are the driver's and other programs')"
    mebibytes = -(-size_for(needs) // 2**20)
    others = memory.optional_parts(choice)
    return UsageError(
        f"--fit {budget.text}: {size(room)} are for the model{left if budget.margin_bytes else ''}"
        f"; the smallest ({', '.join(words)}) needs {size(needs)}, {size(needs - room)} more",
        hint=f"--fit {mebibytes}MiB would do{others}; or choose a smaller model",
    )
