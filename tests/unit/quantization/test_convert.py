"""Conversion: arrangements, parts, folded scales, and independence of the block size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from gemma4_compile.errors import QuantizationError
from gemma4_compile.model_spec.parameters import Arrangement, Parameter, Role, Source
from gemma4_compile.quantization.convert import (
    RowReader,
    conversion_steps,
    read_parameter_rows,
    row_blocks,
)
from gemma4_compile.quantization.groups import GroupScheme, dequantize
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.verification.stored_weights import parameter_rows
from tests.marks import slow_unless

COLS = 64
RNG = np.random.default_rng(3)
TENSORS = {
    "a": RNG.standard_normal((192, COLS)).astype(np.float32),
    "b": RNG.standard_normal((192, COLS)).astype(np.float32),
    "e": RNG.standard_normal((4, 96, COLS)).astype(np.float32),
    "n": RNG.standard_normal(96).astype(np.float32),
    "m": RNG.standard_normal(96).astype(np.float32),
    "low": np.float32(-2.5).reshape(1),
    "high": np.float32(1.25).reshape(1),
}
OF_VECTORS = (Arrangement.STACK, Arrangement.SCALARS)
OF_ROWS = [arrangement for arrangement in Arrangement if arrangement not in OF_VECTORS]


def reader() -> tuple[RowReader, list[int]]:
    sizes: list[int] = []

    def read_rows(name: str, begin: int, end: int) -> np.ndarray:
        rows = TENSORS[name]
        if rows.ndim > 1:
            rows = rows.reshape(-1, COLS)  # a stack is the rows of its matrices
        assert 0 <= begin <= end <= len(rows)
        sizes.append((end - begin) * 4 * COLS)
        return rows[begin:end].copy()

    return read_rows, sizes


def parameter(arrangement: Arrangement, scale: float = 1.0) -> Parameter:
    if arrangement is Arrangement.INTERLEAVE_HALVES:
        source = Source("e", TENSORS["e"].shape)
        return Parameter("p", Role.EXPERTS, (384, COLS), (source,), arrangement, scale, 96)
    names = ("a",) if arrangement is Arrangement.COPY else ("a", "b")
    sources = tuple(Source(name, TENSORS[name].shape) for name in names)
    shape = (192 * len(names), COLS)
    return Parameter("p", Role.LINEAR, shape, sources, arrangement, scale)


def expected(arrangement: Arrangement, tensors: Mapping[str, np.ndarray] = TENSORS) -> np.ndarray:
    if arrangement is Arrangement.COPY:
        return tensors["a"]
    if arrangement is Arrangement.CONCAT_ROWS:
        return np.concatenate([tensors["a"], tensors["b"]])
    if arrangement is Arrangement.INTERLEAVE_HALVES:
        e = tensors["e"]
        return e.reshape(4, 2, 48, e.shape[-1]).swapaxes(1, 2).reshape(-1, e.shape[-1])
    return np.array([row for pair in zip(tensors["a"], tensors["b"], strict=True) for row in pair])


def collect(
    param: Parameter, recipe: str, limit: int | None, block_bytes: int
) -> tuple[dict[str, np.ndarray], list[int]]:
    """Assemble the stored tensors from their blocks, as a package writer would."""
    read_rows, sizes = reader()
    (stored,) = storage_plan([param], RECIPES[recipe], limit)
    buffers = {tensor.name: bytearray(tensor.nbytes) for tensor in stored.tensors}
    written = dict.fromkeys(buffers, 0)
    steps = conversion_steps(stored, block_bytes=block_bytes)
    for block in (block for step in steps for block in step.run(read_rows)):
        data = block.data.tobytes()
        buffers[block.tensor.name][block.offset_bytes : block.offset_bytes + len(data)] = data
        written[block.tensor.name] += len(data)
    assert written == {tensor.name: tensor.nbytes for tensor in stored.tensors}
    arrays = {
        tensor.name: np.frombuffer(buffers[tensor.name], tensor.dtype).reshape(tensor.shape)
        for tensor in stored.tensors
    }
    return arrays, sizes


@pytest.mark.parametrize("arrangement", OF_ROWS)
@pytest.mark.parametrize("block_rows", [1, 7, 64, 1000])
def test_rows_are_arranged_as_the_table_says(arrangement: Arrangement, block_rows: int) -> None:
    arrays, _ = collect(parameter(arrangement), "f32", None, block_rows * 4 * COLS)
    assert np.array_equal(arrays["p.weight"], expected(arrangement))


@pytest.mark.parametrize("begin", [0, 1, 2, 95, 96, 97, 191, 192])
@pytest.mark.parametrize("length", [1, 2, 3, 100, 192])
@pytest.mark.parametrize("arrangement", OF_ROWS)
def test_any_slice_of_rows(arrangement: Arrangement, begin: int, length: int) -> None:
    read_rows, _ = reader()
    param = parameter(arrangement)
    begin = min(begin, param.shape[0] - length)
    rows = read_parameter_rows(param, read_rows, begin, begin + length)
    assert np.array_equal(rows, expected(arrangement)[begin : begin + length])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("arrangement", slow_unless(lambda one: one in OF_ROWS[:2], OF_ROWS))
def test_result_does_not_depend_on_blocks(recipe: str, arrangement: Arrangement) -> None:
    small, sizes = collect(parameter(arrangement), recipe, None, 4 * COLS)
    large, _ = collect(parameter(arrangement), recipe, None, 1 << 30)
    assert {name: array.tobytes() for name, array in small.items()} == {
        name: array.tobytes() for name, array in large.items()
    }
    assert max(sizes) <= 4 * COLS  # memory is bounded by the block


@pytest.mark.parametrize("arrangement", OF_ROWS)
def test_sources_that_a_scheme_holds_are_arranged_and_not_stored_again(
    arrangement: Arrangement,
) -> None:
    """Words of another width than rows of values."""
    param = parameter(arrangement)
    words = {
        source.name: RNG.integers(0, 2**32, (int(np.prod(source.shape[:-1])), 8), np.uint32)
        for source in param.sources
    }
    scales = {name: (rows[:, :2] & 1023).astype(np.float16) for name, rows in words.items()}
    (stored,) = storage_plan([param], RECIPES["q4f16s"], None)
    held = {name: (slice_of(words[name]), slice_of(scales[name])) for name in words}
    steps = conversion_steps(stored, block_bytes=7 * 4 * COLS)
    blocks = [step.run(refused, held) for step in steps]
    for index, arrays in enumerate((words, scales)):
        found = np.concatenate([block[index].data for block in blocks])
        expected_rows = expected(arrangement, arrays)
        np.testing.assert_array_equal(found, expected_rows)


def slice_of(array: np.ndarray) -> Callable[[int, int], np.ndarray]:
    return lambda begin, end: array[begin:end]


def refused(name: str, begin: int, end: int) -> np.ndarray:
    raise AssertionError(f"`{name}` is held")


def test_parts_hold_the_rows_that_they_name() -> None:
    param = parameter(Arrangement.INTERLEAVE_ROWS)
    whole, _ = collect(param, "q4f16", None, 4096)
    parts, _ = collect(param, "q4f16", 128 * COLS // 2, 4096)
    count = len(parts) // 2
    assert count > 1
    for kind in ("q_weight", "q_scale"):
        pieces = [parts[f"p.{kind}.part{index}"] for index in range(count)]
        assert np.array_equal(np.concatenate(pieces), whole[f"p.{kind}"])


def test_only_wanted_parts_are_converted() -> None:
    param = parameter(Arrangement.CONCAT_ROWS)
    (stored,) = storage_plan([param], RECIPES["f32"], 128 * COLS * 4)
    assert len(stored.row_splits) == 3
    steps = list(
        conversion_steps(stored, lambda split: split.row_begin != 128, block_bytes=1 << 14)
    )
    assert {(step.split.row_begin, step.split.row_end) for step in steps} == {(0, 128), (256, 384)}
    assert sum(step.row_end - step.row_begin for step in steps) == 256


def test_parts_of_experts_hold_whole_experts() -> None:
    whole, _ = collect(parameter(Arrangement.INTERLEAVE_HALVES), "f32", None, 4096)
    limit = 3 * 96 * COLS * 4
    parts, _ = collect(parameter(Arrangement.INTERLEAVE_HALVES), "f32", limit, 4096)
    assert [split.shape[0] for split in parts.values()] == [192, 192]
    assert np.array_equal(np.concatenate(list(parts.values())), whole["p.weight"])


def test_scale_is_folded_before_rounding() -> None:
    scaled, _ = collect(parameter(Arrangement.COPY, 16.0), "q4f32", None, 4096)
    plain, _ = collect(parameter(Arrangement.COPY), "q4f32", None, 4096)
    assert np.array_equal(scaled["p.q_weight"], plain["p.q_weight"])
    scheme = GroupScheme(4, "float32")
    values = dequantize(scaled["p.q_weight"], scaled["p.q_scale"], scheme)
    assert np.allclose(values / 16, expected(Arrangement.COPY), atol=4.5 / 7)


def test_vector_is_float32_in_every_recipe() -> None:
    vector = Parameter("n", Role.VECTOR, (96,), (Source("n", (96,)),))
    for recipe in RECIPES:
        arrays, _ = collect(vector, recipe, None, 64)
        assert arrays["n.weight"].dtype == np.float32
        assert np.array_equal(arrays["n.weight"], TENSORS["n"])


@pytest.mark.parametrize("block_bytes", [1, 4 << 20])
def test_vectors_are_stacked_in_their_order(block_bytes: int) -> None:
    sources = tuple(Source(name, (96,)) for name in ("n", "m", "n"))
    vectors = Parameter("v", Role.VECTOR, (3, 96), sources, Arrangement.STACK)
    arrays, _ = collect(vectors, "q4f16", None, block_bytes)
    assert np.array_equal(arrays["v.weight"], [TENSORS[source.name] for source in sources])
    read_rows, _ = reader()
    assert np.array_equal(read_parameter_rows(vectors, read_rows, 1, 2), TENSORS["m"][None])


@pytest.mark.parametrize("block_bytes", [1, 4 << 20])
def test_scalars_are_elements_in_their_order(block_bytes: int) -> None:
    names = ("low", "high", "low")
    sources = tuple(Source(name, ()) for name in names)
    scalars = Parameter("s", Role.VECTOR, (3,), sources, Arrangement.SCALARS)
    arrays, _ = collect(scalars, "q4f16", None, block_bytes)
    assert np.array_equal(arrays["s.weight"], np.array([-2.5, 1.25, -2.5], np.float32))
    read_rows, _ = reader()
    assert np.array_equal(read_parameter_rows(scalars, read_rows, 1, 2), TENSORS["high"])
    found = [int(parameter_rows(scalars, source, np.arange(1))[0]) for source in range(3)]
    assert found == [0, 1, 2]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("recipe", ["q4f16", "f32"])
@pytest.mark.parametrize("arrangement", OF_ROWS)
def test_weight_that_is_not_finite_is_named_as_the_checkpoint_names_it(
    arrangement: Arrangement, recipe: str, value: float
) -> None:
    param = parameter(arrangement)
    good, _ = reader()
    spoilt = param.sources[-1].name

    def read_rows(name: str, begin: int, end: int) -> np.ndarray:
        rows = good(name, begin, end)
        if name == spoilt and begin <= 150 < end:
            rows[150 - begin, 7] = value
        return rows

    (stored,) = storage_plan([param], RECIPES[recipe], None)
    with pytest.raises(QuantizationError, match=f"checkpoint tensor `{spoilt}`: row 150 holds a"):
        _ = [step.run(read_rows) for step in conversion_steps(stored)]


@pytest.mark.parametrize(("begin", "end"), [(0, 3), (1, 2), (2, 3)])
def test_scalars_are_elements_of_a_vector(begin: int, end: int) -> None:
    values = {"low": -1.5, "high": 2.0, "end": 0.25}
    sources = tuple(Source(name, ()) for name in values)
    param = Parameter("p", Role.VECTOR, (3,), sources, Arrangement.SCALARS)

    def read_rows(name: str, first: int, last: int) -> np.ndarray:
        assert (first, last) == (0, 1)
        return np.array([values[name]], np.float32)

    rows = read_parameter_rows(param, read_rows, begin, end)
    assert rows.tolist() == list(values.values())[begin:end]


def test_a_scalar_is_one_block() -> None:
    assert list(row_blocks(())) == [(0, 1)]
