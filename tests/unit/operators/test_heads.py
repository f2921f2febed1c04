"""Rows of the KV state, columns of heads, and the norm and rotation of one head."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx

from gemma4_compile.operators.heads import CacheShape, Head, QkvColumns, norm_and_rotate
from gemma4_compile.operators.tir import function, i32, store
from gemma4_compile.operators.types import Expr


def test_a_ring_holds_a_position_modulo_its_rows() -> None:
    ring = CacheShape(96, kv_heads=2, head_dim=64)
    assert ring.shape() == (96, 2, 64)
    assert [int(ring.row(i32(at))) for at in (0, 95, 96, 200)] == [0, 95, 0, 8]


def test_the_whole_context_has_a_row_for_each_position() -> None:
    whole = CacheShape(None, kv_heads=2, head_dim=64)
    rows, *rest = whole.shape()
    assert isinstance(rows, tirx.Var)
    assert rest == [2, 64]
    assert not rows.same_as(whole.shape()[0]), "a fresh one each time"
    assert int(whole.row(i32(100_000))) == 100_000


@pytest.mark.parametrize(
    ("owns_kv", "value_is_key", "width", "k", "v"),
    [
        (True, False, (4 + 2 + 2) * 8, 40, 56),
        (True, True, (4 + 2) * 8, 40, 40),
        (False, False, 4 * 8, 40, 56),
    ],
)
def test_columns_are_queries_then_keys_then_values(
    owns_kv: bool, value_is_key: bool, width: int, k: int, v: int
) -> None:
    columns = QkvColumns(4, 2, 8, owns_kv, value_is_key)
    assert columns.width == width
    if owns_kv:
        assert tuple(map(int, columns.of_kv(i32(1)))) == (k, v)


DIM, EPS = 8, 1e-3


def normed_and_rotated(
    pairs: int, offset: int, x: np.ndarray, weight: np.ndarray | None, table: np.ndarray | None
) -> np.ndarray:
    """Channels of the head that begins at column 3 of row 1, at step 2 of the table."""
    head = Head(DIM, pairs, offset, EPS)
    arrays = [x]
    with function(scheduled=True) as build:
        qkv = build.arg("qkv", x.shape, "float32")
        w = rotary = None
        if weight is not None:
            w = build.arg("weight", weight.shape, "float32")
            arrays.append(weight)
        if table is not None:
            rotary = build.arg("rotary", table.shape, "float32")
            arrays.append(table)
        out = build.arg("out", (DIM,), "float32")

        def put(channel: Expr, result: Expr) -> None:
            store(out, result, channel)

        norm_and_rotate(head, qkv, 1, i32(3), w, rotary, i32(2), put)
    module = tvm.IRModule({"f": build.result.with_attr("global_symbol", "f")})
    result = tvm.runtime.tensor(np.full(DIM, np.nan, np.float32))
    tvm.compile(module, target="llvm")["f"](*map(tvm.runtime.tensor, arrays), result)
    found: np.ndarray = result.numpy()
    return found


RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, DIM + 4)).astype(np.float32)
WEIGHT = RNG.normal(size=DIM).astype(np.float32)
ANGLES = RNG.uniform(-3, 3, (4, 6))
TABLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=-1).astype(np.float32)


def normed(weight: np.ndarray | float = 1.0) -> np.ndarray:
    x = X[1, 3 : 3 + DIM].astype(float)
    result: np.ndarray = x / np.sqrt((x**2).mean() + EPS) * weight
    return result


def test_a_value_is_normed_without_weight_and_rotation() -> None:
    found = normed_and_rotated(0, 0, X, None, None)
    np.testing.assert_allclose(found, normed(), rtol=1e-5)


@pytest.mark.parametrize(("pairs", "offset"), [(4, 0), (4, 2), (1, 4), (3, 0)])
def test_a_channel_is_rotated_with_the_one_half_a_head_away(pairs: int, offset: int) -> None:
    angles = np.zeros(DIM // 2)  # pairs beyond are not rotated
    angles[:pairs] = ANGLES[2, offset : offset + pairs]
    low, high = np.split(normed(WEIGHT), 2)
    expected = [
        *(low * np.cos(angles) - high * np.sin(angles)),
        *(high * np.cos(angles) + low * np.sin(angles)),
    ]
    found = normed_and_rotated(pairs, offset, X, WEIGHT, TABLE)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
