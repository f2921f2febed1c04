"""What a library carries is what its operators mean; the browser's side: tests/web."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.s_tir import dlight

from gemma4_compile.device_check import known_answers as module_under_test
from gemma4_compile.device_check.known_answers import VERSION, choose, known_answers
from gemma4_compile.device_check.known_inputs import KnownInput, sample_positions
from gemma4_compile.operators.activation_quantization import QuantizeRows
from gemma4_compile.operators.activations import PackedOutput
from gemma4_compile.operators.attention import (
    PrefillAttention,
)
from gemma4_compile.operators.base import Operator, description_of
from gemma4_compile.operators.bounded_linear import BoundedLinear
from gemma4_compile.operators.linear import Linear, WeightLayout
from gemma4_compile.operators.norms import RmsNorm
from gemma4_compile.operators.padded_rows import PADDING, KeptRows, ShiftedRotary
from gemma4_compile.operators.picture_attention import example_last_rows
from gemma4_compile.operators.qk_norm_rope_cache import QkNormRopeCache
from gemma4_compile.operators.rows import ONE, Chunk, Few, Rows
from gemma4_compile.operators.sampling import SampleTopP, TopPHistogram
from gemma4_compile.operators.split_attention import NormedQuery, SplitAttention
from gemma4_compile.operators.spreads import Spread
from gemma4_compile.operators.vision_attention import PatchAttention
from gemma4_compile.targets import TargetSpec, webgpu
from gemma4_compile.targets.schedules import schedule_rules

NORM = RmsNorm(rows=Chunk(), width=96, eps=1e-6, out_dtype="float16")
WIDE_NORM = RmsNorm(rows=Chunk(), width=192, eps=1e-6, out_dtype="float32")
VOCAB = 3000
CHUNK = 512


def linear(rows: Rows, bits: int, cols: int, outputs: int = 32) -> Linear:
    return Linear(rows, WeightLayout(bits, "float32", 32, cols, (outputs,)), "float32")


def described(operators: Mapping[str, Operator]) -> dict[str, str]:
    texts = {name: description_of(op.prim_func()) for name, op in operators.items()}
    return {name: text for name, text in texts.items() if text is not None}


def answers_of(
    chunk: int = CHUNK, spec: TargetSpec = webgpu.DEFAULT, **operators: Operator
) -> dict[str, Any]:
    module = tvm.IRModule({name: op.prim_func() for name, op in operators.items()})
    with spec.tvm_target():
        scheduled = dlight.ApplyDefaultSchedule(*schedule_rules(spec))(module)
    return known_answers(scheduled, described(operators), spec, chunk)


def buffer_of(fields: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """A buffer as a reader makes it from the JSON."""
    if "data" in fields:
        return np.frombuffer(base64.b64decode(fields["data"]), fields["dtype"])
    spreads = tuple(Spread(**spread) for spread in fields["spreads"])
    return KnownInput(fields["dtype"], (fields["count"],), spreads, fields["seed"]).array()


def samples_of(result: Mapping[str, Any], dtype: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(result["expected"]), dtype).astype(np.float64)


def test_a_norm_is_expected_as_its_formula_says() -> None:
    (case,) = answers_of(norm=NORM)["cases"]
    (launch,) = case["launches"]
    assert launch == {"kernel": "norm_kernel", "grid": [19, 1, 1], "scalars": [19]} | {
        "buffers": launch["buffers"]
    }
    w, x, _ = (buffer_of(case["buffers"][index]) for index in launch["buffers"])
    rows = x.astype(np.float64).reshape(19, 96)
    expected = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-6) * w
    (result,) = case["results"]
    assert (result["name"], result["first"], result["count"]) == ("y", 0, 19 * 96)
    at = list(sample_positions(0, 19 * 96))
    sampled = expected.reshape(-1)[at]
    error = np.abs(samples_of(result, "float16") - sampled)
    assert (error <= result["absolute"] + result["relative"] * np.abs(sampled)).all()
    assert result["absolute"] < 1e-3 * np.abs(expected).max(), "a bound that bounds"


def test_quantised_weights_are_expected_as_their_layout_says() -> None:
    (case,) = answers_of(gemv=linear(ONE, 4, cols=64))["cases"]
    scale, words, x, _ = (buffer_of(case["buffers"][i]) for i in case["launches"][0]["buffers"])
    nibbles = (words.reshape(32, 8)[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    weight = (nibbles.reshape(32, 64).astype(np.float64) - 7) * np.repeat(
        scale.reshape(32, 2), 32, axis=1
    )
    (result,) = case["results"]
    expected = (weight @ x.astype(np.float64))[list(sample_positions(0, 32))]
    np.testing.assert_allclose(samples_of(result, "float32"), expected, rtol=0, atol=1e-5)


def test_the_smallest_kernel_of_each_kind_is_chosen() -> None:
    """But of a token's matmuls a large one, by which libraries are timed."""
    chosen = choose(
        described(
            {
                "a": WIDE_NORM,
                "b": NORM,
                "c": linear(ONE, 4, 64),
                "d": linear(ONE, 4, 32),
                "e": linear(ONE, 8, 64),
                "f": linear(Chunk(), 4, 64),
                "g": linear(Chunk(), 4, 32),
            }
        ),
        CHUNK,
    )
    assert [[kernel.name for kernel in kernels] for _, kernels in chosen] == [
        ["b"],
        ["c"],
        ["e"],
        ["g"],
    ]


def test_a_timed_matmul_is_the_largest_that_is_not_too_large() -> None:
    few, more, many = (linear(ONE, 4, 64, outputs=count) for count in (4096, 200_000, 400_000))
    assert _names(choose(described({"a": few, "b": more, "c": many}), CHUNK)) == ["b"]
    assert _names(choose(described({"a": many}), CHUNK)) == ["a"], "smaller than any case may be"
    larger = linear(ONE, 4, 64, outputs=800_000)
    assert _names(choose(described({"a": larger, "b": many}), CHUNK)) == ["b"], "the smallest then"


def _names(chosen: Sequence[tuple[str, Sequence[Any]]]) -> list[str]:
    return [kernel.name for _, kernels in chosen for kernel in kernels]


def test_kernels_of_large_operands_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = described({"small": NORM, "large": linear(ONE, 4, 64, outputs=4096)})
    assert [title for title, _ in choose(texts, CHUNK)] == ["norm", "matmul of one token"]
    monkeypatch.setattr(module_under_test, "MAX_BYTES", 100_000)
    assert [title for title, _ in choose(texts, CHUNK)] == ["norm"]


def test_a_ring_has_wrapped_and_all_of_its_buffers_are_bound() -> None:
    query = NormedQuery(pairs=16, rotary_total=16, eps=1e-6)
    attention = SplitAttention(ONE, 2, 1, 32, 16, "float32", 24, query=query)
    (case,) = answers_of(attention=attention)["cases"]
    positions = buffer_of(case["buffers"][2])
    assert positions[0] > 24
    assert sorted(case["launches"][0]["buffers"]) == list(range(len(case["buffers"])))
    assert {result["name"] for result in case["results"]} == {"o_partial", "split_lse"}


def test_towers_are_tested_where_they_use_an_experiment() -> None:
    layout = WeightLayout(8, "float16", 32, 64, (64,))
    matmul = BoundedLinear(Chunk(), layout, "float16", clipped=True)
    attention = PatchAttention(2, 16, 3, "float16", "float16")
    assert answers_of(matmul=matmul, attention=attention)["cases"] == []
    found = answers_of(spec=webgpu.H200_MATRICES, matmul=matmul, attention=attention)
    cases = found["cases"]
    assert [case["title"] for case in cases] == ["matmul of a tower", "attention of patches"]
    given = buffers_of(matmul, cases[0])
    x = np.clip(given["x"].astype(np.float64).reshape(19, 64), *given["bounds"][:2])
    weight = np.frombuffer(given["q_weight0"].tobytes(), np.uint8).reshape(64, 64) - 127.0
    weight *= np.repeat(given["q_scale0"].astype(np.float64).reshape(64, 2), 32, axis=1)
    expected = np.clip(x @ weight.T, *given["bounds"][2:]).reshape(-1)
    (result,) = cases[0]["results"]
    assert result["count"] > 0.9 * expected.size
    at = list(sample_positions(result["first"], result["count"]))
    np.testing.assert_allclose(
        samples_of(result, "float32"), expected[result["first"] :][at], rtol=0, atol=1e-4
    )


def buffers_of(operator: Operator, case: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a case of one kernel, by the names of the definition's arguments."""
    names = [param.name for param in operator.prim_func().params]
    return dict(zip(names, map(buffer_of, case["buffers"]), strict=True))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_of_padding_are_left_out_and_counted(dtype: str) -> None:
    operator = KeptRows(Chunk(), 96, dtype)
    (case,) = answers_of(rows=operator)["cases"]
    assert case["title"] == "rows without padding"
    given = buffers_of(operator, case)
    is_kept = given["embeddings"].reshape(19, 96)[:, 0] != np.float32(PADDING)
    assert 0 < is_kept.sum() < 19
    own, first = np.flatnonzero(is_kept), 150
    high, low = given["padding"].reshape(-1, 2)[first - 1].astype(int)
    before, missing = high * 1024 + low, 19 - len(own)
    assert low + missing >= 1024, "one digit carries into the other"
    padding = given["padding"].reshape(-1, 2).astype(int)
    padding[first : first + 19] = np.stack(divmod(before + np.cumsum(~is_kept), 1024), axis=-1)
    expected = {
        "padding": padding,
        "source": np.r_[np.full(missing, own[0]), own],
        "kept_positions": np.array([first - before, len(own), first - before + len(own), 0]),
        "copies": np.array([missing]),
    }
    assert [result["name"] for result in case["results"]] == list(expected)
    for result in case["results"]:
        sampled = expected[result["name"]].reshape(-1)
        sampled = sampled[list(sample_positions(result["first"], result["count"]))]
        dtype_of_result = case["buffers"][result["buffer"]]["dtype"]
        np.testing.assert_array_equal(samples_of(result, dtype_of_result), sampled)
        assert result["absolute"] == result["relative"] == 0


def test_angles_are_turned_back_by_every_bit_of_the_padding() -> None:
    operator = ShiftedRotary(Chunk(), 6)
    (case,) = answers_of(angles=operator)["cases"]
    assert case["title"] == "angles without padding"
    given = buffers_of(operator, case)
    shift = int(given["positions"][0] - given["kept_positions"][0])
    angles = given["rotary"].astype(np.float64).reshape(-1, 6, 2) @ (1, 1j)
    turns = given["shifts"].astype(np.float64).reshape(-1, 6, 2) @ (1, 1j)
    for bit in range(len(turns)):
        if shift >> bit & 1:
            angles *= turns[bit].conj()
    frequencies = given["frequencies"].astype(np.float64)
    client, own = (
        np.outer(given[name][0] + np.arange(19), frequencies)
        for name in ("positions", "kept_positions")
    )
    more = (client - client.astype(np.float32)) - (own - own.astype(np.float32))
    assert np.abs(more).max() > 1e-3
    angles *= np.exp(1j * more)
    expected = np.stack([angles.real, angles.imag], axis=-1).reshape(-1)
    (result,) = case["results"]
    assert (result["name"], result["first"], result["count"]) == ("out", 0, 19 * 12)
    sampled = expected[list(sample_positions(0, 19 * 12))]
    assert (np.abs(samples_of(result, "float32") - sampled) <= result["absolute"]).all()
    assert result["absolute"] < 1e-4 < 0.1 < np.abs(sampled).max()


def test_padding_is_tested_for_a_chunk_and_for_one_token() -> None:
    operators: dict[str, Operator] = {
        "c": KeptRows(Chunk(), 96, "float16"),
        "d": KeptRows(ONE, 96, "float16"),
    }
    operators |= {"e": ShiftedRotary(Chunk(), 6), "f": ShiftedRotary(ONE, 6)}
    chosen = choose(described(operators), CHUNK)
    assert [kernel.name for _, kernels in chosen for kernel in kernels] == ["c", "d", "e", "f"]


@pytest.mark.parametrize("chunk", [1, 2, CHUNK])
def test_attention_of_pictures_is_given_some(chunk: int) -> None:
    fields = (Chunk(), 2, 1, 32, 16, "float32", 40)
    answers = answers_of(
        chunk, causal=PrefillAttention(*fields), own=PrefillAttention(*fields, sees_pictures=True)
    )
    causal, pictures = answers["cases"]
    assert (causal["title"], pictures["title"]) == (
        "attention of a prompt",
        "attention of a picture",
    )
    rows = min(chunk, 19)
    ends = [buffer_of(one) for one in pictures["buffers"] if one["dtype"] == "int32"]
    np.testing.assert_array_equal(ends[1], example_last_rows(rows))
    assert [result["name"] for result in pictures["results"]] == ["out"]


def test_no_chunk_is_longer_than_the_package_s() -> None:
    """A ring has room for one: more rows would race for it."""
    cache = QkNormRopeCache(
        Chunk(), 2, 1, 32, 16, 0, 16, 1e-6, True, False, cache_dtype="float32", cache_rows=9
    )
    (case,) = answers_of(chunk=1, cache=cache)["cases"]
    assert case["launches"][0]["scalars"] == [1]
    positions = next(fields for fields in case["buffers"] if fields["count"] == 4)
    assert list(buffer_of(positions)) == [1200, 1, 1201, 0]


def test_rounded_values_may_move_by_one_now_and_then() -> None:
    (case,) = answers_of(rows=QuantizeRows(Chunk(), 64, "float32", PackedOutput(True)))["cases"]
    words, scales = case["results"]
    assert 1 <= words["moved"] < 10
    assert "absolute" not in words
    assert scales["absolute"] > 0


@pytest.mark.parametrize(("rows", "drawn"), [(1, 1), (None, 3)])
def test_the_drawn_token_is_the_one_that_passes_its_share(rows: int | None, drawn: int) -> None:
    of = ONE if rows == 1 else Chunk()
    answers = answers_of(histogram=TopPHistogram(VOCAB, of), draw=SampleTopP(VOCAB, of))
    (case,) = answers["cases"]
    assert [launch["kernel"] for launch in case["launches"]] == ["histogram_kernel", "draw_kernel"]
    named = {result["name"]: result for result in case["results"]}
    assert list(named) == ["ordered", "sums", "counts", "masses", "token"]
    probs = buffer_of(case["buffers"][0]).astype(np.float64).reshape(drawn, VOCAB)
    uniforms, (top_p,) = (buffer_of(case["buffers"][index]) for index in (5, 6))
    assert uniforms.shape == (drawn,)
    expected = []
    for row, uniform in zip(probs, uniforms, strict=True):
        assert 0.5 < row.sum() < 1.5
        order = np.argsort(-row, kind="stable")
        last = int(np.searchsorted(np.cumsum(row[order]), float(top_p)))
        kept = np.sort(order[: last + 1])
        passed = np.cumsum(row[kept])
        expected.append(kept[np.searchsorted(passed, float(uniform) * passed[-1], side="right")])
    assert samples_of(named["token"], "int32").tolist() == expected


def test_steps_of_guesses_are_tested_beside_those_of_one_token() -> None:
    """With more rows than a block of a matmul takes, and fewer than the step may have."""
    layout = WeightLayout(4, "float32", 32, 96, (40,))
    common: dict[str, Any] = {
        "rows": Few(9), "heads": 2, "kv_heads": 1, "head_dim": 32, "window": 40,
        "cache_dtype": "float32", "cache_rows": 64, "splits": 2, "grain": 8,
    }  # fmt: skip
    rotation: dict[str, Any] = {"pairs": 16, "rotary_total": 16, "eps": 1e-6}
    made: dict[str, Any] = {
        "one": linear(ONE, 4, 96),
        "few": Linear(Few(9), layout, "float32"),
        "attention": SplitAttention(**common),
        "normed": SplitAttention(**common, query=NormedQuery(**rotation)),
    }
    answers = answers_of(**made)
    found = {case["launches"][0]["kernel"]: case for case in answers["cases"]}
    assert set(found) == {f"{name}_kernel" for name in made}
    for name in ("few", "attention", "normed"):
        case = found[f"{name}_kernel"]
        assert case["launches"][0]["scalars"] == [7], name
        assert case["title"].endswith("of guesses")


def test_the_digest_names_inputs_answers_and_kernels() -> None:
    first, again = answers_of(norm=NORM), answers_of(norm=NORM)
    assert json.dumps(first) == json.dumps(again)
    assert first["version"] == VERSION
    assert first["limits"] == "default"
    assert first["subgroup_size"] == 0
    assert answers_of(norm=WIDE_NORM)["digest"] != first["digest"]
    module = tvm.IRModule({"norm": NORM.prim_func()})
    with webgpu.COMPAT.tvm_target():
        other = dlight.ApplyDefaultSchedule(*schedule_rules(webgpu.COMPAT))(module)
    compat = known_answers(other, described({"norm": NORM}), webgpu.COMPAT, CHUNK)
    assert compat["cases"] == first["cases"]
    assert compat["digest"] != first["digest"], "the same answers of another kernel"


def test_another_library_with_the_same_operator_computes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = RmsNorm(rows=Chunk(), width=160, eps=1e-6, out_dtype="float32")
    first = answers_of(norm=norm)
    monkeypatch.setattr(module_under_test, "run", None)
    second = answers_of(renamed=norm, spec=webgpu.SUBGROUPS)
    (one,), (other,) = first["cases"], second["cases"]
    assert other["launches"][0]["kernel"] == "renamed_kernel"
    assert (one["buffers"], one["results"]) == (other["buffers"], other["results"])
    with pytest.raises(TypeError):
        answers_of(norm=RmsNorm(rows=Chunk(), width=224, eps=1e-6, out_dtype="float32"))
