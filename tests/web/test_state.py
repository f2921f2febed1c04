"""The KV state of a WebGPU package on Dawn: what a driver is told, and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.operators.padded_rows import DIGITS, PADDING
from gemma4_compile.tiny import checkpoint as tiny
from tests.marks import slow_unless
from tests.web.compiled import SEEING_LITTLE, SIZES, TINY, WINDOWS, Compiler
from tests.web.dawn import DawnRun, Step, VulkanDriver, run_on_dawn

pytestmark = pytest.mark.dawn

KIND = TINY
WINDOW, CHUNK, CONTEXT = WINDOWS[KIND], SIZES[KIND].prefill_chunk, SIZES[KIND].context_length
RINGS = -(-(WINDOW + CHUNK - 1) // 32) * 32
SHORT, LONG = 20, 3 * RINGS + 5  # before and after the rings have wrapped
NEXT = (300, 301, 302)


def _ids(count: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [2, *(int(token) for token in rng.integers(107, 1000, count - 1))]


def _next(name: str) -> list[Step]:
    return [
        {"op": "decode", "id": token, "save": f"{name}-{index}"} for index, token in enumerate(NEXT)
    ]


def _turns() -> list[Step]:
    """The short conversation and the long one, in turns in one state, and forks of the long one."""
    found: list[Step] = [{"op": "renew", "sequences": 3}]
    found.append({"op": "prefill", "ids": _ids(LONG - 4, 1)})
    found += [{"op": "add", "sequence": 1}, {"op": "prefill", "ids": _ids(SHORT - 4, 1)}]

    def both(token: int, *names: str) -> None:
        for sequence, name in enumerate(names or ("", "")):
            found.append({"op": "use", "sequence": sequence})
            found.append({"op": "decode", "id": token, **({"save": name} if name else {})})

    for token in (200, 201, 202, 203):
        both(token)
    found += [{"op": "use", "sequence": 0}, {"op": "keep", "name": "turns"}]
    found.append({"op": "fork", "sequence": 2, "position": LONG})
    for index, token in enumerate(NEXT):
        both(token, f"long-turns-{index}", f"short-turns-{index}")
        found.append({"op": "use", "sequence": 2})
        found.append({"op": "decode", "id": token, "save": f"long-forked-{index}"})
    found += [{"op": "use", "sequence": 1}, {"op": "remove", "sequence": 2}]
    found += [{"op": "restore", "name": "turns"}, *_next("long-imported")]
    return found


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no json": ({"text": "[["}, "description is damaged"),
    "deep": ({"text": "[" * 200_000}, "description is damaged"),
    "package": ({"metadata": {"package": "sha256:other"}}, "of another package"),
    "capacity": ({"metadata": {"context_length": 64}}, "context length: expected"),
    "chunk": ({"metadata": {"prefill_chunk": 2}}, "prefill chunk: expected"),
    "dtype": ({"metadata": {"dtype": "float64"}}, "cache dtype: expected"),
    "layout": ({"metadata": {"layout_hash": "0"}}, "cache layout: expected"),
    "length": ({"metadata": {"seq_length": LONG - 1}}, "is damaged"),
    "missing": ({"drop": 1}, "page group 1 of"),
    "short": ({"shape": {"group": 0, "shape": [2, 4], "dtype": "float32"}}, "expected a tensor"),
}


@dataclass(frozen=True)
class Session:
    """One run: loading takes long in software."""

    run: DawnRun
    told: Mapping[str, Mapping[str, Any]]


@pytest.fixture(
    scope="module", params=slow_unless(lambda quant: quant == "q4f16", ["f32", "q4f16"])
)
def session(
    request: pytest.FixtureRequest,
    compiled: Compiler,
    lavapipe: VulkanDriver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Session:
    named: dict[str, Step] = {}
    steps: list[Step] = []

    def note(name: str, step: Step) -> None:
        named[name] = step
        steps.append(step)

    for name, length in (("short", SHORT), ("long", LONG)):
        steps += [{"op": "clear"}, {"op": "prefill", "ids": _ids(length - 4, 1)}]
        steps += [{"op": "decode", "id": token} for token in (200, 201, 202, 203)]
        note(f"keep {name}", {"op": "keep", "name": name})
        steps += _next(f"{name}-kept")
        steps.append({"op": "renew"})
        steps.append({"op": "prefill", "ids": _ids(40, 2)})  # of another conversation
        note(f"restore {name}", {"op": "restore", "name": name})
        note(f"driver {name}", {"op": "driver"})
        steps += _next(f"{name}-restored")
    for name, (change, _) in REFUSED.items():
        note(f"refused {name}", {"op": "restore", "name": "long", "change": change})
    steps.append({"op": "renew", "contextLength": CONTEXT - 1})
    note("other capacity", {"op": "restore", "name": "long"})
    steps.append({"op": "renew", "chunk": CHUNK - 1})
    note("other chunk", {"op": "restore", "name": "long"})
    steps.append({"op": "renew"})
    note("partial", {"op": "restore", "name": "long", "change": {"stop": 1}})
    steps += [{"op": "clear"}, {"op": "prefill", "ids": _ids(SHORT - 4, 1), "save": "partial"}]
    steps += [{"op": "renew"}, {"op": "prefill", "ids": _ids(SHORT - 4, 1), "save": "whole"}]
    note("once more", {"op": "restore", "name": "long"})
    steps += _next("once-more")
    note("driver", {"op": "driver"})
    steps += [{"op": "clear"}]
    note("driver cleared", {"op": "driver"})
    steps += _turns()
    folder = tmp_path_factory.mktemp("state")
    run = run_on_dawn(compiled(KIND, "webgpu", request.param), steps, folder, lavapipe)
    told = {
        name: next(result for done, result in zip(steps, run.steps, strict=True) if done is step)
        for name, step in named.items()
    }
    return Session(run, told)


# --- Checkpoints ---


@pytest.mark.parametrize("name", ["short", "long"])
def test_logits_after_an_import_are_the_same_bytes(session: Session, name: str) -> None:
    assert session.told[f"restore {name}"]["length"] == {"short": SHORT, "long": LONG}[name]
    for index in range(len(NEXT)):
        kept = session.run.logits(f"{name}-kept-{index}")
        assert np.isfinite(kept).all()
        assert session.run.logits(f"{name}-restored-{index}").tobytes() == kept.tobytes()


def test_a_checkpoint_holds_rings_once_and_full_layers_up_to_the_length(session: Session) -> None:
    for name, length in (("short", SHORT), ("long", LONG)):
        told = session.told[f"keep {name}"]
        rows = {group["shape"][1] for group in told["metadata"]["groups"]}
        assert rows == {length, min(length, RINGS)}
        assert told["metadata"]["package"].startswith("sha256:")
        for group, nbytes in zip(told["metadata"]["groups"], told["bytes"], strict=True):
            assert nbytes == np.prod(group["shape"]) * int(group["dtype"][-2:]) // 8


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_without_an_end_of_the_instance(
    session: Session, name: str
) -> None:
    told = session.told[f"refused {name}"]
    assert REFUSED[name][1] in told["refused"]
    assert not told["dead"]


@pytest.mark.parametrize("name", ["capacity", "chunk"])
def test_another_states_checkpoint_is_refused(session: Session, name: str) -> None:
    told = session.told[f"other {name}"]
    assert REFUSED[name][1] in told["refused"]
    assert not told["dead"]


def test_an_import_that_was_given_up_leaves_nothing(session: Session) -> None:
    assert session.told["partial"]["length"] == 0
    assert session.run.logits("partial").tobytes() == session.run.logits("whole").tobytes()


def test_the_library_goes_on_after_all_of_them(session: Session) -> None:
    for index in range(len(NEXT)):
        kept = session.run.logits(f"long-kept-{index}")
        assert session.run.logits(f"once-more-{index}").tobytes() == kept.tobytes()


# --- Several sequences ---


@pytest.mark.parametrize("name", ["long-turns", "short-turns", "long-forked", "long-imported"])
def test_each_of_several_sequences_is_as_one_alone(session: Session, name: str) -> None:
    """In turns; one that begins as a copy; and one whose checkpoint was read into another."""
    for index in range(len(NEXT)):
        kept = session.run.logits(f"{name.split('-')[0]}-kept-{index}")
        assert session.run.logits(f"{name}-{index}").tobytes() == kept.tobytes()


# --- What a driver is told ---


def test_buffers_are_the_clients(session: Session) -> None:
    told = session.told["driver"]
    assert told["count"] == len(told["state"])
    assert told["known"]
    assert len(set(told["state"])) == told["count"]
    assert told["tensors"] == told["data"] == told["state"][:4]
    assert told["ofPair"] == told["tensors"][0]
    assert told["ofView"] == told["tensors"][2]
    assert told["isSame"]


def test_other_objects_have_none_and_end_nothing(session: Session) -> None:
    told = session.told["driver"]
    assert told["onHost"] == -1
    assert told["ofState"] == [-1, 0]
    assert told["ofTensor"] == [-1] * 4
    first, held, last = told["useCounts"]
    assert first >= 1
    assert (held, last) == (first + 1, first)


def test_a_step_is_what_was_uploaded(session: Session) -> None:
    told = session.told["driver"]
    assert told["stepResult"] == 0
    assert told["step"] == told["uploaded"]
    assert any(told["step"][16:])


def test_length_room_and_version(session: Session) -> None:
    restored, later = session.told["driver long"], session.told["driver"]
    assert restored["length"] == LONG
    assert later["length"] == LONG + len(NEXT)
    assert restored["room"] == later["room"] == RINGS - WINDOW + 1
    cleared = session.told["driver cleared"]
    assert cleared["length"] == 0
    assert cleared["version"] == later["version"] + 2  # cleared, and a sequence added


def test_the_interface_is_json(session: Session) -> None:
    told = session.told["driver"]["interface"]
    assert told["abi"] == 1
    assert told["any_bytes"] == 16
    json.dumps(told)


# --- Padded pictures ---

PICTURES = {"large": 21, "small": 3, "next": 10}  # rows that are no padding, of a chunk of them


@pytest.mark.slow
def test_a_checkpoint_counts_the_padding_of_pictures(
    compiled: Compiler, lavapipe: VulkanDriver, tmp_path: Path
) -> None:
    """A conversation goes on as it would have, and would not without the numbers of padding."""
    package = compiled(SEEING_LITTLE, "webgpu", "q4f16")
    width, rng = tiny.config()["text_config"]["hidden_size"], np.random.default_rng(5)
    for name, own in PICTURES.items():
        rows = rng.normal(0, 3, (CHUNK, width)).astype(np.float32)
        rows[own:, 0] = PADDING
        rows.tofile(tmp_path / f"{name}.f32")

    def picture(name: str) -> Step:
        return {"op": "rows", "rows": name, "count": CHUNK, "modality": abi.MODALITY_MEDIA}

    def go_on(name: str) -> list[Step]:
        later: list[Step] = [picture("next"), {"op": "prefill", "ids": _ids(5, 3)}]
        return [*_next(name), *later, *_next(f"{name}-later")]

    begin: list[Step] = [{"op": "clear"}]
    for seed, name in enumerate(("large", "small", "small")):
        begin += [{"op": "prefill", "ids": _ids(12, seed)}, picture(name)]
    begin += [{"op": "prefill", "ids": _ids(7, 4)}, {"op": "decode", "id": 200}]
    keep: Step = {"op": "keep", "name": "padded"}
    other: list[Step] = [{"op": "renew"}, {"op": "prefill", "ids": _ids(40, 2)}]
    restore: Step = {"op": "restore", "name": "padded"}
    wrong: Step = {**restore, "change": {"zero": [1, DIGITS]}}
    steps = [*begin, keep, *go_on("kept"), *other, restore, *go_on("restored")]
    steps += [*other, wrong, *go_on("wrong")]
    run = run_on_dawn(package, steps, tmp_path, lavapipe)
    told = run.steps[steps.index(restore)]
    assert told["length"] == 3 * (12 + CHUNK) + 8 > RINGS
    for part in ("", "-later"):
        for index in range(len(NEXT)):
            kept = run.logits(f"kept{part}-{index}")
            assert np.isfinite(kept).all()
            assert run.logits(f"restored{part}-{index}").tobytes() == kept.tobytes()
            assert run.logits(f"wrong{part}-{index}").tobytes() != kept.tobytes()
