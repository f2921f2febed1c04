"""What a budget chose, for provenance and for people: each choice, what it saves, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gemma4_compile.planning.plan_report import size
from gemma4_compile.types import JsonObject

_NAMES = {
    "recipe": "recipe",
    "context": "context",
    "prefill_chunk": "prefill chunk",
    "libraries": "libraries",
    "per_layer_table": "per-layer table",
    "experts": "experts",
}


@dataclass(frozen=True)
class Step:
    """One choice.

    Attributes
    ----------
    given : by the user, so that it was none
    instead_of : what was given up; None where nothing was
    saves_bytes : by which that would take more
    problem : why that cannot be built, whatever the budget; None where it can
    """

    value: object
    given: bool = False
    instead_of: object = None
    saves_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Fitted:
    """A budget and what it chose.

    Attributes
    ----------
    needs_bytes : weights, keys and values, activations, and the drafter's
    host_bytes : by part, what of the main library's lies in the host's memory
    """

    budget_bytes: int
    margin_bytes: int
    device: str | None
    needs_bytes: int
    choices: Mapping[str, Step]
    host_bytes: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """The entry of provenance."""
        return {
            "budget_bytes": self.budget_bytes,
            "margin_bytes": self.margin_bytes,
            **({} if self.device is None else {"device": self.device}),
            "needs_bytes": self.needs_bytes,
            **({"host_bytes": dict(self.host_bytes)} if self.host_bytes else {}),
            "choices": {name: _step_json(step) for name, step in self.choices.items()},
        }


def _step_json(step: Step) -> JsonObject:
    given_up = {"instead_of": step.instead_of, "saves_bytes": step.saves_bytes}
    return {
        "value": step.value,
        "given": step.given,
        **({} if step.instead_of is None else given_up),
        **({} if step.problem is None else {"problem": step.problem}),
    }


def fit_rows(entry: JsonObject) -> list[tuple[str, str]]:
    """An entry of provenance as rows for people: name, and what was chosen and why."""
    margin = entry["margin_bytes"]
    room = entry["budget_bytes"] - margin
    where = f" on {entry['device']}" if "device" in entry else ""
    kept = f", {size(margin)} more for the driver and other programs" if margin else ""
    rows = [("fit", f"{size(entry['needs_bytes'])} of {size(room)}{where}{kept}")]
    for name, step in entry["choices"].items():
        rows.append((_NAMES[name], f"{_value(step['value'])}{_why(step)}"))
    return rows


def _value(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return (
        ", ".join(value)
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )


def _why(step: JsonObject) -> str:
    if step["given"]:
        return " (as given)"
    if "instead_of" not in step:
        return ""
    other, value = step["instead_of"], step["value"]
    what = _value(other)
    if isinstance(other, list):
        what = f"with {', '.join(name for name in other if name not in value)}"
    more = f"{what}: {size(step['saves_bytes'])} more"
    return f" ({what} cannot be built: {step['problem']})" if "problem" in step else f" ({more})"


def run_options(entry: JsonObject) -> str:
    """What `gemma4-chat` and `gemma4-serve` are given to place things as the budget has them."""
    options = {"per_layer_table": "--ple", "experts": "--experts"}
    return "".join(
        f" {option} {entry['choices'][name]['value']}"
        for name, option in options.items()
        if "instead_of" in entry["choices"].get(name, {})
    )
