"""Functions of a library refuse tensors that they were not compiled for: kernels check nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.runtime import Package
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.upload import Uploads
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.native_library import NativeLibrary

CHUNK = 8


@dataclass(frozen=True)
class Model:
    """A loaded package, and what its weights are."""

    library: NativeLibrary
    weights: list[Any]
    width: int

    def state(self) -> Any:
        state = KvState(self.library, Device("cpu"), 64, CHUNK)
        state.add(0)
        state.begin((0,), (1,))
        return state.handle


@pytest.fixture(scope="module")
def model(tiny_package: Path) -> Model:
    package = Package.open(tiny_package)
    device = Device.open(package.device)
    library = NativeLibrary(package.library_path, device)
    metadata = library.metadata()
    weights = list(package.load_parameters(metadata, Uploads(device)))
    embedded = library.compiled_function(abi.EMBED)(_ids([1]), tvm_ffi.Array(weights))
    return Model(library, weights, embedded.shape[1])


def _ids(values: object) -> Any:
    return tvm_ffi.from_dlpack(np.array(values, "int32"))


def _decode(model: Model, **changed: Any) -> Any:
    good = {"ids": _ids([[1]]), "kv": model.state(), "weights": tvm_ffi.Array(model.weights)}
    return model.library.compiled_function(abi.DECODE)(*(good | changed).values())


def _prefill(model: Model, **changed: Any) -> Any:
    good = {
        "embeddings": tvm_ffi.from_dlpack(np.zeros((1, 1, model.width), "float32")),
        "ids": _ids([[1]]),
        "modality": _ids([[0]]),
        "kv": model.state(),
        "weights": tvm_ffi.Array(model.weights),
    }
    return model.library.compiled_function(abi.PREFILL)(*(good | changed).values())


def _gaps(array: np.ndarray[Any, Any]) -> Any:
    """The same numbers, with room between them."""
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array
    return tvm_ffi.from_dlpack(wide[..., 0])


def _as_float16(array: np.ndarray[Any, Any]) -> Any:
    return tvm_ffi.from_dlpack(array.astype("float16"))


def _wider(array: np.ndarray[Any, Any]) -> Any:
    """The rows of a table are open: a window of it may be given."""
    return tvm_ffi.from_dlpack(np.concatenate([array, array], axis=-1))


def test_right_ones_are_taken(model: Model) -> None:
    logits, _ = _decode(model)
    assert np.isfinite(np.from_dlpack(logits)).all()
    logits, _ = _prefill(model)
    assert np.isfinite(np.from_dlpack(logits)).all()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_as_float16, r"found float16 \["),
        (_wider, r"found float32 \["),
        (_gaps, "without gaps"),
        (lambda array: tvm_ffi.from_dlpack(array.reshape(-1)), r"found float32 \[\d+\] on cpu"),
        (lambda _: "a text", "found no tensor"),
    ],
)
@pytest.mark.parametrize("call", [_decode, _prefill])
def test_a_wrong_weight_is_named(
    model: Model, call: Callable[..., Any], change: Callable[..., Any], found: str
) -> None:
    """Each of the weights that a function reads: the first, the last one, and two between."""
    last = len(model.weights) - 1
    for index in (1, last // 3, last // 2, last):
        array = np.from_dlpack(model.weights[index])
        if array.ndim == 1 and found.endswith("on cpu"):
            continue
        wrong = [*model.weights[:index], change(array), *model.weights[index + 1 :]]
        with pytest.raises((TypeError, ValueError), match=rf"packed_params\[{index}\].*{found}"):
            call(model, weights=tvm_ffi.Array(wrong))


def test_a_weight_that_is_not_read_may_be_anything(model: Model) -> None:
    """As `embed` reads the first table alone."""
    embed = model.library.compiled_function(abi.EMBED)
    others: list[Any] = [*model.weights[:1], *("none" for _ in model.weights[1:])]
    expected = np.from_dlpack(embed(_ids([3]), tvm_ffi.Array(model.weights)))
    np.testing.assert_array_equal(np.from_dlpack(embed(_ids([3]), tvm_ffi.Array(others))), expected)


def test_too_few_weights_are_refused(model: Model) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match="packed_params"):
        _decode(model, weights=tvm_ffi.Array(model.weights[:-1]))


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("ids", np.zeros((1, 1), "int64"), "ids"),
        ("ids", np.zeros((1, 2), "int32"), "ids"),
        ("ids", np.zeros((2, 2), "int32")[:1, :1], None),  # one element has no gaps
        ("embeddings", np.zeros((1, 1, 1), "float32"), "embeddings"),
        ("modality", np.zeros((1, 2), "int32"), "modality"),
    ],
)
def test_a_wrong_argument_is_named(
    model: Model, name: str, wrong: np.ndarray[Any, Any], expected: str | None
) -> None:
    if expected is None:
        _prefill(model, **{name: tvm_ffi.from_dlpack(wrong)})
        return
    with pytest.raises((TypeError, ValueError, RuntimeError), match=f"{expected}[,:]"):
        _prefill(model, **{name: tvm_ffi.from_dlpack(wrong)})


def test_arguments_with_gaps_are_refused(model: Model) -> None:
    embeddings = _gaps(np.zeros((1, 1, model.width), "float32"))
    with pytest.raises(ValueError, match=r"prefill_tokens: embeddings: .*without gaps"):
        _prefill(model, embeddings=embeddings)
    probabilities = _gaps(np.full((1, 1024), 1 / 1024, "float32"))
    with pytest.raises(ValueError, match=r"argsort_probs: probs: .*without gaps"):
        model.library.compiled_function(abi.ARGSORT)(probabilities)


def test_a_state_of_another_dtype_is_refused(model: Model) -> None:
    """Its tensors come from a packed function, whose results TVM takes for what they should be."""
    create = model.library.linked_function(abi.KV_CREATE)
    layout = (*(1, 32, 544, 32) * 3, *(1, 64, 0, 0))
    rotary = (*(32, 16, _bits(1e4)), *(64, 8, _bits(1e6)))
    sizes = [tvm_ffi.Shape((size,)) for size in (1, 64, CHUNK, 0)]
    state = create(*sizes, tvm_ffi.Shape(layout), tvm_ffi.Shape(rotary), 16, 1, "another")
    model.library.linked_function(abi.KV_ADD_SEQUENCE)(state, 0)
    model.library.linked_function(abi.KV_BEGIN_FORWARD)(
        state, tvm_ffi.Shape((0,)), tvm_ffi.Shape((1,))
    )
    with pytest.raises(ValueError, match=r"gemma4_kv_\w+: expected float32 .* found float16"):
        _decode(model, kv=state)


def _bits(number: float) -> int:
    return int(np.float64(number).view("int64"))
