"""The memory of what a request could choose, by the plans of its libraries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gemma4_compile.compile.compilation import LibraryPlan
from gemma4_compile.compile.library_set import check_plans, library_plans
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.compile.resolve import Choices, ChosenLibrary, choose, sizes_of
from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.errors import Gemma4CompileError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.planning.expert_shares import expert_shares
from gemma4_compile.planning.fit import Choice, contexts_for
from gemma4_compile.planning.memory_parts import bytes_with_table_on_host, memory_parts
from gemma4_compile.planning.plan import BuildPlan
from gemma4_compile.planning.plan_report import size
from gemma4_compile.planning.recipe_plan import RecipePlan, plan_recipe
from gemma4_compile.planning.weight_parts import EXPERTS, PER_LAYER_TABLE


@dataclass
class Memory:
    """Memory of choices: a package's is that of its library that takes most."""

    request: CompileRequest
    config: Gemma4Config
    _plans_of: dict[tuple[str, tuple[str, ...], int], tuple[BuildPlan, ...]] = field(
        default_factory=dict
    )
    _recipes: dict[tuple[str, int | None], RecipePlan] = field(default_factory=dict)
    _problems: dict[Choice, Gemma4CompileError | None] = field(default_factory=dict)

    def request_of(self, choice: Choice, request: CompileRequest | None = None) -> CompileRequest:
        """A request with a choice in the place of what was left out."""
        asked = request or self.request
        return replace(
            asked,
            quant=choice.quant,
            usual=None,
            libraries=tuple(one for one in asked.libraries if one.name in choice.libraries),
            context_length=choice.context,
            prefill_chunk=choice.chunk,
        )

    def plans(self, choice: Choice) -> dict[str, LibraryPlan]:
        """The libraries of a choice by name."""
        asked = self.request_of(choice)
        return {plan.name: plan for plan in self._plans(choose(asked), asked)}

    def _plans(
        self, chosen: Choices, asked: CompileRequest, contexts: tuple[int, ...] = ()
    ) -> tuple[LibraryPlan, ...]:
        sizes = sizes_of(asked, self.config)
        limit = chosen.splits.max_binding_bytes
        recipe = self._recipes.get((asked.quant, limit))
        if recipe is None:
            table = model_parameters(self.config, COMPONENTS)
            recipe = plan_recipe(self.config, table, chosen.recipe, limit)
            self._recipes[asked.quant, limit] = recipe
        return library_plans(chosen, sizes, self.config, contexts, (recipe,))

    def bytes_of(self, choice: Choice) -> int:
        """Memory that a choice needs; the drafter's, which may be left unused, is counted."""
        return max(
            sum(memory_parts(plan).values())
            - sum(on_host(plan, choice).values())
            - plan.kv_bytes
            + kv.total_bytes
            for plan in self._sizes(choice)
            for kv in plan.kv
            if kv.context_length == choice.context
        )

    def _sizes(self, choice: Choice) -> tuple[BuildPlan, ...]:
        """Plans of different libraries, with the keys and values of all contexts."""
        given = self.request.context_length
        key = choice.quant, choice.libraries, choice.chunk
        if key not in self._plans_of:
            known = contexts_for(self.config.max_position_embeddings)
            longer = [one for one in known if one >= choice.chunk] if given is None else ()
            asked = self.request_of(choice)
            chosen = choose(asked)
            some = replace(chosen, libraries=self._different(chosen.libraries))
            plans = self._plans(some, asked, tuple(longer))
            self._plans_of[key] = tuple(plan.numbers for plan in plans)
        return self._plans_of[key]

    def _different(self, libraries: tuple[ChosenLibrary, ...]) -> tuple[ChosenLibrary, ...]:
        """Of libraries that take the same memory the first: what it depends on is told apart."""
        firsts: dict[object, ChosenLibrary] = {}
        for one in libraries:
            target = None if self.config.drafter is None else one.target  # its attention's splits
            key = one.recipe.activation_dtype, one.target.pads_pictures, target
            firsts.setdefault(key, one)
        return tuple(firsts.values())

    def problem(self, choice: Choice) -> Gemma4CompileError | None:
        """Why a choice cannot be built; None if it can."""
        built = replace(choice, table_on_host=False, experts=1.0)
        if built not in self._problems:
            self._problems[built] = None
            try:
                check_plans([*self.plans(built).values()])
            except Gemma4CompileError as error:
                self._problems[built] = error
        return self._problems[built]

    def fits(self, choice: Choice, room_bytes: int) -> bool:
        """Return whether a choice can be built, and needs no more than that."""
        return self.bytes_of(choice) <= room_bytes and self.problem(choice) is None

    def optional_parts(self, choice: Choice) -> str:
        """What could be left out besides, and what it takes, as part of a hint."""
        numbers = next(iter(self.plans(choice).values())).numbers
        parts = memory_parts(numbers)
        found = [
            f"{name} {size(parts[part])}"
            for part, name in (("vision", "image"), ("audio", "audio"))
            if part in parts
        ]
        text = f"; --modalities text saves {', '.join(found)}" if found else ""
        if "drafter" in parts:
            text += f"; no --drafter saves {size(parts['drafter'])}"
        return text


def on_host(plan: BuildPlan, choice: Choice) -> dict[str, int]:
    """Bytes by part that a choice leaves in the host's memory, less what stands in their place."""
    found = {}
    without = bytes_with_table_on_host(plan)
    if choice.table_on_host and without is not None:
        found[PER_LAYER_TABLE] = plan.device_memory_bytes - without
    if choice.experts < 1:
        (share,) = expert_shares(plan, (choice.experts,))
        found[EXPERTS] = share.host_bytes
    return found


def can_leave_table(plan: BuildPlan) -> bool:
    """Return whether the per-layer table of a library may lie in the host's memory."""
    return not is_of_pages(plan.target.device) and bytes_with_table_on_host(plan) is not None
