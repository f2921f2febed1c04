"""The search for kernel sizes: candidates are real kernels that run, and the fastest is chosen."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.webgpu.candidates import CANDIDATES, Family
from benchmarks.webgpu.tune import choose, prepare
from gemma4_compile.targets.tuning import Tuning, from_fields
from tests.web.dawn import HERE, VulkanDriver, run_node

PRESET = "gemma-4-E2B-it"
TUNE = HERE.parents[1] / "benchmarks" / "webgpu" / "tune.mjs"


def line(
    family: str, rows: int, preset: str, microseconds: float, launches: int = 1
) -> dict[str, object]:
    values = {"rows": rows}
    return {
        "family": family,
        "values": values,
        "preset": preset,
        "microseconds": microseconds,
        "launches": launches,
    }


def test_the_candidate_with_the_least_time_of_all_launches_is_chosen() -> None:
    lines = [
        line("gemv", 2, "a", 5.0, launches=10),
        line("gemv", 2, "b", 5.0),
        line("gemv", 4, "a", 4.0, launches=10),
        line("gemv", 4, "b", 9.0),
    ]

    assert choose(lines, {}) == {"gemv": {"rows": 4}}


def test_a_candidate_that_a_model_cannot_have_is_not_chosen() -> None:
    lines = [line("gemv", 2, "a", 1.0), line("gemv", 4, "a", 4.0), line("gemv", 4, "b", 9.0)]

    assert choose(lines, {}) == {"gemv": {"rows": 4}}


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_name_fields_of_the_tuning(name: str) -> None:
    for values in CANDIDATES[name].candidates:
        from_fields(Tuning, {name: values})


@pytest.mark.dawn
def test_kernels_of_a_candidate_are_timed(
    lavapipe: VulkanDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Family(("decode_attention",), False, [{"threads": 128}])
    monkeypatch.setitem(CANDIDATES, "decode_attention", few)
    contexts = (31, 1023)
    cases = list(prepare([PRESET], "q4f16", "default", ["decode_attention"], contexts))
    cases = [case for case in cases if case.operator == cases[0].operator]  # slow to compile
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(asdict(case)) + "\n" for case in cases))

    arguments = [str(path), "--repeats", "1", "--copy-mib", "1"]
    done = run_node(TUNE, *arguments, env=lavapipe.environment(tmp_path))

    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(text) for text in done.stdout.splitlines()]
    assert [item["operator"] for item in lines] == [case.operator for case in cases]
    assert all(item["microseconds"] > 0 for item in lines)
    assert {item["context"] for item in lines} == set(contexts)


@pytest.mark.slow
def test_steps_that_check_guesses_have_their_rows() -> None:
    """The product's own sizes, of a recipe's exact kernels and of the attention."""
    family = CANDIDATES["few_rows"]
    few = Family(family.kinds, False, [{}], family.few)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CANDIDATES, "few_rows", few)
        cases = list(prepare([PRESET], "q4f16", "default", ["few_rows"], (1023,)))
    kinds = {case.operator.split("(")[0] for case in cases}
    assert kinds == {"Linear", "SplitAttention", "CombineSplits"}
    assert {case.rows for case in cases} == {family.few}
    assert all(case.groups[0] * case.groups[1] > 0 for case in cases)
