"""A plan as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gemma4_compile.checkpoint.trained import is_trained, trained_twin
from gemma4_compile.device_kinds import is_of_pages
from gemma4_compile.options.package import TRAINED_QUANT
from gemma4_compile.planning.expert_shares import expert_shares
from gemma4_compile.planning.memory_parts import bytes_with_table_on_host, memory_parts
from gemma4_compile.planning.parameter_kinds import kind_name
from gemma4_compile.planning.plan import BuildPlan
from gemma4_compile.planning.recipe_plan import RecipePlan
from gemma4_compile.planning.savings import savings
from gemma4_compile.planning.weight_parts import PARTS, WEIGHTS
from gemma4_compile.quantization.schemes import NAMED
from gemma4_compile.targets.devices import TypicalDevice, typical_devices
from gemma4_compile.targets.spec import INT8, WORDS
from gemma4_compile.types import JsonObject

_SMALLER = "q4f16s"
"""Their usual recipe with 4 bits in the head as well."""


@dataclass(frozen=True)
class LibraryNeeds:
    """A library of a planned package.

    Attributes
    ----------
    float16 : how it reads float16 weights; None where there are none
    """

    name: str
    file: str
    float16: str | None
    plan: BuildPlan


def plan_json(
    plan: BuildPlan, origin: Mapping[str, object], libraries: Sequence[LibraryNeeds] = ()
) -> JsonObject:
    """The plan as plain values; bytes are bytes.

    Parameters
    ----------
    plan : of the main library
    origin : entry of the model's source in provenance
    libraries : of all
    """
    required = asdict(plan.requirements)
    return {
        "source": dict(origin),
        "target": plan.target.name,
        "limits": plan.target.limits,
        "quant": plan.recipe.name,
        "activations": plan.target.activations,
        "context_length": plan.context_length,
        "prefill_chunk": plan.prefill_chunk,
        "image_tokens": None if plan.config.vision is None else plan.image_tokens,
        "problem": plan.problem,
        "parameters": {
            **dict(plan.parameters),
            "all": plan.parameter_count,
            "read_per_token": plan.read_per_token,
        },
        "recipes": {recipe.name: _recipe_json(recipe) for recipe in plan.recipes},
        "kv": [{**asdict(kv), "total_bytes": kv.total_bytes} for kv in plan.kv],
        "kv_parts": plan.kv_parts,
        "device_memory": {
            "weights_bytes": plan.recipe.weights_bytes,
            "kv_bytes": plan.kv_bytes,
            "activation_bytes": plan.activation_bytes,
            "total_bytes": plan.device_memory_bytes,
            "total_bytes_with_table_on_host": bytes_with_table_on_host(plan),
            "parts": memory_parts(plan),
        },
        "savings": [asdict(one) for one in savings(plan, _named(libraries))],
        **_experts_json(plan),
        **({} if plan.drafter is None else {"drafter": asdict(plan.drafter)}),
        "checkpoint_bytes": plan.checkpoint_bytes,
        "download_bytes": plan.download_bytes,
        "requirements": {
            **required,
            "features": list(plan.features),
            "language_features": list(plan.target.language_features),
        },
        "devices": [
            {"name": device.name, "lacks": _lacks(plan, device)} for device in _devices(plan)
        ],
        "libraries": [_library_json(library) for library in libraries],
    }


def _experts_json(plan: BuildPlan) -> JsonObject:
    """Memory by where experts lie, where that can be chosen."""
    shares = expert_shares(plan)
    return {"expert_shares": [asdict(one) for one in shares]} if shares else {}


def _library_json(library: LibraryNeeds) -> JsonObject:
    plan = library.plan
    return {
        "name": library.name,
        "file": library.file,
        "target": plan.target.name,
        "limits": plan.target.limits,
        "activations": plan.target.activations,
        "float16": library.float16,
        "problem": plan.problem,
        "requirements": plan.provenance(),
        "devices": [
            {"name": device.name, "lacks": _lacks(plan, device)} for device in _devices(plan)
        ],
    }


def _recipe_json(recipe: RecipePlan) -> JsonObject:
    values = asdict(recipe)
    del values["name"]
    values["parts"] = dict(recipe.parts)
    return {"problem": recipe.problem} if recipe.problem is not None else values


def _devices(plan: BuildPlan) -> tuple[TypicalDevice, ...]:
    return typical_devices(plan.target.name)


def _lacks(plan: BuildPlan, device: TypicalDevice) -> list[str]:
    """Reasons why a device does not run the package; empty if it does."""
    impossible = [] if plan.problem is None else [plan.problem]
    return [*impossible, *device.lacks(plan.requirements)]


def size(nbytes: int) -> str:
    """Bytes for people."""
    if nbytes >= 1 << 30:
        return f"{nbytes / 2**30:.2f} GiB"
    return f"{nbytes / 2**20:.1f} MiB"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines: the first column to the left, the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join(["  " + first.ljust(widths[0]), *cells]).rstrip())
    return lines


def _recipe_row(recipe: RecipePlan, chosen: bool) -> list[str]:
    name = f"{recipe.name} *" if chosen else recipe.name
    if recipe.problem is not None:
        return [name, "not possible", "", "", "", ""]
    return [
        name,
        size(recipe.weights_bytes),
        size(recipe.bytes_per_token),
        size(recipe.largest_tensor_bytes),
        size(recipe.largest_binding_bytes),
        str(recipe.most_parts),
    ]


def _activations(plan: BuildPlan) -> str:
    """The dtype of the vectors that matmuls multiply, in the short form of recipes."""
    if plan.target.activations == INT8:
        return INT8
    if plan.target.float16 == WORDS:
        return "f32"
    return {"float16": "f16", "float32": "f32"}[NAMED[plan.recipe.name].activation_dtype]


def plan_text(
    plan: BuildPlan,
    model: str,
    libraries: Sequence[LibraryNeeds] = (),
    why: str | None = None,
) -> str:
    """The plan of the main library as a page of tables, and what each of several needs.

    Parameters
    ----------
    why : the recipe was chosen, where it was not given
    """
    lines = [
        f"{model} in {plan.recipe.name} for {plan.target.name} (limits {plan.target.limits}), "
        f"{_activations(plan)} activations, context {plan.context_length:,}, "
        f"prefill chunk {plan.prefill_chunk:,}",
        *([] if why is None else [f"recipe {plan.recipe.name}: {why}"]),
        *([] if plan.config.vision is None else [f"pictures of up to {plan.image_tokens} tokens"]),
        "",
        "Parameters",
        *_table(
            [
                *([kind_name(kind, plan.config), f"{count:,}"] for kind, count in plan.parameters),
                ["all", f"{plan.parameter_count:,}"],
                ["read for a token", f"{plan.read_per_token:,}"],
            ]
        ),
        "",
        "Weights",
        *_table(
            [
                ["", "all", "read for a token", "largest tensor", "after splitting", "parts"],
                *(_recipe_row(recipe, recipe == plan.recipe) for recipe in plan.recipes),
            ]
        ),
        *_kv_lines(plan),
        *_parts(plan),
        "",
        "Device memory",
        *_table(
            [
                ["weights", size(plan.recipe.weights_bytes)],
                *([f"  {name}", size(nbytes)] for name, nbytes in _weights(plan)),
                ["keys and values", size(plan.kv_bytes)],
                ["activations, estimated", size(plan.activation_bytes)],
                ["all", size(plan.device_memory_bytes)],
                *_table_rows(plan),
                *_drafter_rows(plan),
                *_sequence_rows(plan),
            ]
        ),
        *_saving_lines(plan, libraries),
        *_expert_lines(plan),
        "",
        "Download",
        *_table(
            [
                ["checkpoint, what is read", size(plan.checkpoint_bytes)],
                ["package, estimated", size(plan.download_bytes)],
            ]
        ),
    ]
    if _devices(plan):
        lines += ["", "Needs", *_table(_needs(plan)), "", "Runs on", *_table(_fits(plan))]
    if libraries[1:]:
        lines += ["", "Libraries", *_table([*map(_library_row, libraries)])]
    return "\n".join([*lines, *_trained(plan, model)])


def _library_row(library: LibraryNeeds) -> list[str]:
    """Its name and file, what it needs of a device, and how many of the typical ones have that."""
    plan = library.plan
    needs = _feature_names(plan)
    if plan.subgroup_size:
        needs.append(f"{plan.subgroup_size} threads in a subgroup")
    devices = _devices(plan)
    fitting = sum(not _lacks(plan, device) for device in devices)
    share = f"{fitting} of {len(devices)} devices" if devices else plan.target.name
    if plan.problem is not None:
        share = "not possible"
    return [library.name, library.file, ", ".join(needs) or "nothing more", share]


def _feature_names(plan: BuildPlan) -> list[str]:
    """Optional features of the device and of its shader language."""
    return [*plan.features, *plan.target.language_features]


def _trained(plan: BuildPlan, model: str) -> list[str]:
    """The checkpoint to take instead, where one was trained for the bits of the recipe."""
    if plan.problem is not None or not plan.recipe.name.startswith("q4"):
        return []
    if is_trained(model) and plan.recipe.name == TRAINED_QUANT:
        return ["", f"4 bits hold the head exactly as well: --quant {_SMALLER} is smaller"]
    twin = trained_twin(model)
    if twin is None:
        return []
    return ["", "Trained for 4 bits, which hold its weights exactly (docs/options.md)", f"  {twin}"]


def _weights(plan: BuildPlan) -> list[tuple[str, int]]:
    """Names and bytes of the parts of the weights."""
    parts = memory_parts(plan)
    return [(PARTS[part], parts[part]) for part in WEIGHTS if part in parts]


def _named(libraries: Sequence[LibraryNeeds]) -> list[tuple[str, BuildPlan]]:
    return [(library.name, library.plan) for library in libraries]


def _saving_lines(plan: BuildPlan, libraries: Sequence[LibraryNeeds]) -> list[str]:
    """What each choice saves, and costs; `--fit` chooses among them."""
    rows = [
        [one.option, size(one.saves_bytes), one.costs] for one in savings(plan, _named(libraries))
    ]
    if not rows:
        return []
    width = max(len(costs) for _, _, costs in rows)
    table = _table([[option, saves, costs.ljust(width)] for option, saves, costs in rows])
    return ["", "Would save memory (--fit chooses)", *table]


def _expert_lines(plan: BuildPlan) -> list[str]:
    """Memory by where experts lie, where that can be chosen."""
    shares = expert_shares(plan)
    if not shares:
        return []
    head = ["", "device memory", "of the host", "read from it for a token"]
    rows = [
        [
            f"--experts {one.share:.0%}",
            size(one.device_bytes),
            size(one.host_bytes),
            size(one.bytes_per_token),
        ]
        for one in shares
    ]
    cache = "  --expert-cache SIZE: so much more of the device, for what is read most of the host's"
    return ["", "Experts in the host's memory", *_table([head, *rows]), cache]


def _table_rows(plan: BuildPlan) -> list[list[str]]:
    """Memory without the per-layer table, which can be on the host in a process of its own."""
    if is_of_pages(plan.target.device):
        return []
    without = bytes_with_table_on_host(plan)
    return [] if without is None else [["all, that table on the host (--ple host)", size(without)]]


def _parts(plan: BuildPlan) -> list[str]:
    """Say that no binding holds the keys of a full layer, which a launch for each part reads."""
    if plan.kv_parts == 1:
        return []
    return [f"  keys of a full layer are in {plan.kv_parts} parts, a binding and a launch each"]


def _kv_lines(plan: BuildPlan) -> list[str]:
    """Memory of keys and values by context; of an encoder nothing, as it keeps none."""
    if not plan.layout.slots:
        return []
    return [
        "",
        "Keys and values",
        *_table(
            [
                ["context", "rings", "full layers", "all", "in a padded cache"],
                *(
                    [
                        f"{kv.context_length:,}",
                        size(kv.sliding_bytes),
                        size(kv.full_bytes),
                        size(kv.total_bytes),
                        size(kv.padded_bytes),
                    ]
                    for kv in plan.kv
                ),
            ]
        ),
    ]


def _sequence_rows(plan: BuildPlan) -> list[list[str]]:
    """Memory of another sequence at a time: its keys and values; pages have one."""
    if is_of_pages(plan.target.device) or not plan.layout.slots:
        return []
    return [["each further sequence (--slots)", size(plan.kv_bytes)]]


def _drafter_rows(plan: BuildPlan) -> list[list[str]]:
    """Memory of the drafter, which nobody has to load."""
    if plan.drafter is None:
        return []
    together = plan.drafter.weights_bytes + plan.drafter.activation_bytes
    return [["and the drafter, if it is used", size(together)]]


def _needs(plan: BuildPlan) -> list[list[str]]:
    needs = plan.requirements
    subgroup = [["smallest subgroup", f"{needs.subgroup_size} threads"]]
    return [
        ["features", ", ".join(_feature_names(plan)) or "none"],
        *(subgroup if needs.subgroup_size else []),
        ["largest binding", size(needs.max_binding_bytes)],
        ["storage buffers", str(needs.max_storage_buffers)],
        ["workgroup memory", f"{needs.max_shared_memory_bytes // 1024} KiB"],
        ["threads in a workgroup", str(needs.max_threads_per_block)],
    ]


def _fits(plan: BuildPlan) -> list[list[str]]:
    if plan.problem is not None:
        return [["nothing", plan.problem]]
    rows = []
    for device in _devices(plan):
        lacks = _lacks(plan, device)
        rows.append([device.name, "yes" if not lacks else f"no: {'; '.join(lacks)}"])
    width = max(len(row[1]) for row in rows)
    return [[name, verdict.ljust(width)] for name, verdict in rows]
