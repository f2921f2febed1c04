"""What takes a device's memory, part by part: of a plan, and of the package that is made of it."""

from __future__ import annotations

from gemma4_compile.planning.plan import BuildPlan
from gemma4_compile.planning.weight_parts import PARTS, PER_LAYER_TABLE


def memory_parts(plan: BuildPlan) -> dict[str, int]:
    """Bytes by part in the order of PARTS, the drafter's weights and activations together."""
    found = dict(plan.recipe.parts)
    if plan.drafter is not None:
        found["drafter"] = plan.drafter.weights_bytes + plan.drafter.activation_bytes
    found |= {"kv": plan.kv_bytes, "activations": plan.activation_bytes}
    return {part: found[part] for part in PARTS if part in found}


def bytes_with_table_on_host(plan: BuildPlan) -> int | None:
    """Memory of a device that has a window of a chunk's rows in the per-layer table's place.

    None for a model without such a table, or a recipe that cannot store it.
    """
    if not dict(plan.recipe.parts).get(PER_LAYER_TABLE):
        return None
    return plan.device_memory_bytes - plan.host_table_bytes
