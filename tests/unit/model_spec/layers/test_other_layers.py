"""Layers that no released model has, written here alone out of the parts of model_spec/layers.

Several residual streams, as Gemma 3n has them (AltUp), and an encoder without keys and values that
outlive a call. Both are exported with their own parameters, fused, and run next to NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.component import ExportOptions
from gemma4_compile.model_spec.layers.attention import AttentionContext, AttentionOptions
from gemma4_compile.model_spec.layers.kv_cache import KvTensors
from gemma4_compile.model_spec.layers.mlp import FeedForward
from gemma4_compile.model_spec.layers.norm import Norm
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.model_spec.text.decoder import DecoderLayer, Stream
from gemma4_compile.model_spec.text.kv_layout import kv_layout
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.passes.fuse import fuse
from gemma4_compile.quantization.matrix import StoredMatrices
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from tests.models import DENSE_LIKE
from tests.unit.model_spec.exported import (
    STATE,
    Array,
    config_of,
    exported,
    kinds,
    matrices_of,
    random,
    rms_normed,
    run,
    tensor,
)

WIDTH, INNER, STREAMS, ACTIVE, EPS = 16, 32, 4, 1, 1e-6
ROWS = 5
Layer = Callable[[nn.Tensor], nn.Tensor]


def matrices(shapes: dict[str, tuple[int, int]]) -> Matrices:
    parameters = [
        Parameter(name, Role.LINEAR, shape, (Source(f"{name}.weight", shape),))
        for name, shape in shapes.items()
    ]
    return StoredMatrices(storage_plan(parameters, RECIPES["f32"], None))


MLP_SHAPES = {"mlp.gate_up_proj": (2 * INNER, WIDTH), "mlp.down_proj": (WIDTH, INNER)}


def gelu(x: Array) -> Array:
    result: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def mlp(x: Array, gate_up: Array, down: Array) -> Array:
    pairs = x @ gate_up.T
    result: Array = (gelu(pairs[:, ::2]) * pairs[:, 1::2]) @ down.T
    return result


class Altup(nn.Module):
    """A layer of one stream in the midst of several: predict all, run one, correct all.

    References
    ----------
    transformers 5.24.0, models/gemma3n/modeling_gemma3n.py, `Gemma3nTextAltUp`.
    """

    def __init__(self, matrices: Matrices) -> None:
        self.router_norm = Norm(WIDTH, EPS)
        self.modality_router = matrices.matrix("modality_router")
        self.prediction_coefs = matrices.matrix("prediction_coefs")
        self.correction_coefs = matrices.matrix("correction_coefs")

    def __call__(self, streams: Sequence[nn.Tensor], layer: Layer) -> list[nn.Tensor]:
        """Streams of (rows, WIDTH) float32 to as many."""
        predicted = self._predict(streams)
        activated = layer(predicted[ACTIVE])
        innovation = activated - predicted[ACTIVE]
        coefs = columns(self.correction_coefs.matmul(self._modalities(activated), CHUNK))
        ones = nn.Tensor.from_scalar(1.0, "float32")
        return [x + innovation * (c + ones) for x, c in zip(predicted, coefs, strict=True)]

    def _modalities(self, x: nn.Tensor) -> nn.Tensor:
        scale = nn.Tensor.from_scalar(1 / WIDTH, "float32")
        return nn.op.tanh(self.modality_router.matmul(self.router_norm(x) * scale, CHUNK))

    def _predict(self, streams: Sequence[nn.Tensor]) -> list[nn.Tensor]:
        coefs = columns(self.prediction_coefs.matmul(self._modalities(streams[ACTIVE]), CHUNK))
        predicted = []
        for index, x in enumerate(streams):
            for other, coef in zip(streams, coefs[index * STREAMS :], strict=False):
                x = x + other * coef
            predicted.append(x)
        return predicted


def columns(x: nn.Tensor) -> list[nn.Tensor]:
    """Each column of a matrix: (rows, 1)."""
    return list(nn.op.split(x, int(x.shape[1]), axis=1))


ALTUP_SHAPES = {
    "modality_router": (STREAMS, WIDTH),
    "prediction_coefs": (STREAMS**2, STREAMS),
    "correction_coefs": (STREAMS, STREAMS),
}


class GatedLayer(nn.Module):
    """A branch of one stream."""

    def __init__(self, matrices: Matrices) -> None:
        self.before, self.after = Norm(WIDTH, EPS), Norm(WIDTH, EPS)
        self.mlp = FeedForward("mlp", matrices)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        return x + self.after(self.mlp(self.before(x)))


def altup_by_hand(streams: Array, parameters: list[Array]) -> list[Array]:
    w_router, router, prediction, correction, before, after, gate_up, down = parameters

    def modalities(x: Array) -> Array:
        result: Array = np.tanh(rms_normed(x, w_router) / WIDTH @ router.T)
        return result

    coefs = (modalities(streams[ACTIVE]) @ prediction.T).reshape(ROWS, STREAMS, STREAMS)
    predicted = streams + np.einsum("nji,ind->jnd", coefs, streams)
    x = predicted[ACTIVE]
    activated = x + rms_normed(mlp(rms_normed(x, before), gate_up, down), after)
    corrections = modalities(activated) @ correction.T + 1
    return list(predicted + corrections.T[:, :, None] * (activated - x))


def streams_of(x: nn.Tensor) -> list[nn.Tensor]:
    """(STREAMS, rows, width) to each of them."""
    shape = tuple(x.shape[1:])
    return [nn.op.reshape(one, shape) for one in nn.op.split(x, STREAMS, axis=0)]


def test_a_layer_with_four_residual_streams() -> None:
    made = matrices({**ALTUP_SHAPES, **MLP_SHAPES})
    altup, layer = Altup(made), GatedLayer(made)

    def body(streams: nn.Tensor) -> tuple[nn.Tensor, ...]:
        return tuple(altup(streams_of(streams), layer))

    before = exported([altup, layer], body, streams=tensor(STREAMS, "n", WIDTH))
    module = fuse(before, target_spec("cpu"))
    assert "residual_norm" in kinds(module), "the branch is added where it is normed"
    shapes = [(WIDTH,), *ALTUP_SHAPES.values(), (WIDTH,), (WIDTH,), *MLP_SHAPES.values()]
    parameters = [random(index, *shape) / 2 for index, shape in enumerate(shapes)]
    streams = random(20, STREAMS, ROWS, WIDTH)
    found = run(module, streams, parameters)
    for values, expected in zip(found, altup_by_hand(streams, parameters), strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)


def test_a_decoder_s_own_layer_runs_on_one_stream_of_several() -> None:
    config, options = config_of(DENSE_LIKE), ExportOptions("float32", 16, 1, AttentionOptions(1, 1))
    plans, width = layer_plans(config), config.hidden_size
    layer = DecoderLayer(plans[0], config, matrices_of(config), options)
    layout = kv_layout(config, plans, "float32", 16)

    def body(streams: nn.Tensor, kv: nn.Object) -> tuple[nn.Tensor, ...]:
        context = AttentionContext(KvTensors(layout, kv))
        first, *others = streams_of(streams)
        return layer(Stream(first), context).residual, *others

    before = exported([layer], body, streams=tensor(STREAMS, "n", width), kv=STATE)
    assert kinds(fuse(before, target_spec("cpu"))) == [
        *("rms_norm", "linear", "qk_norm_rope_cache", "prefill_attention", "linear"),
        *("residual_norm", "linear", "linear", "residual_norm"),
    ]


class EncoderLayer(nn.Module):
    """Every row attends to every other; no keys or values outlive the call."""

    def __init__(self, matrices: Matrices) -> None:
        self.before_attention, self.after_attention = Norm(WIDTH, EPS), Norm(WIDTH, EPS)
        self.qkv_proj = matrices.matrix("qkv_proj")
        self.before_mlp, self.after_mlp = Norm(WIDTH, EPS), Norm(WIDTH, EPS)
        self.mlp = FeedForward("mlp", matrices)

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        h = x + self.after_attention(self._attend(self.before_attention(x)))
        return h + self.after_mlp(self.mlp(self.before_mlp(h)))

    def _attend(self, hidden: nn.Tensor) -> nn.Tensor:
        q, k, v = nn.op.split(self.qkv_proj.matmul(hidden, CHUNK), 3, axis=1)
        scale = nn.Tensor.from_scalar(WIDTH**-0.5, "float32")
        scores = nn.op.matmul(q, nn.op.permute_dims(k, [1, 0])) * scale
        return nn.op.matmul(nn.op.softmax(scores, axis=-1), v)


def attended(x: Array, qkv: Array) -> Array:
    q, k, v = np.split(x @ qkv.T, 3, axis=1)
    scores = np.exp(q @ k.T * WIDTH**-0.5)
    result: Array = scores / scores.sum(-1, keepdims=True) @ v
    return result


def test_an_encoder_without_keys_that_outlive_a_call() -> None:
    made = matrices({"qkv_proj": (3 * WIDTH, WIDTH), **MLP_SHAPES})
    layers, last = [EncoderLayer(made) for _ in range(2)], Norm(WIDTH, EPS)

    def body(x: nn.Tensor) -> nn.Tensor:
        for layer in layers:
            x = layer(x)
        return last(x)

    before = exported([*layers, last], body, x=tensor("n", WIDTH))
    module = fuse(before, target_spec("cpu"))
    layer_kinds = ["linear", "residual_norm", "linear", "linear", "residual_norm"]
    assert kinds(module) == ["rms_norm", *layer_kinds * 2]
    shapes = [(WIDTH,), (WIDTH,), (3 * WIDTH, WIDTH), (WIDTH,), (WIDTH,), *MLP_SHAPES.values()]
    weights = [[random(10 * n + i, *shape) / 3 for i, shape in enumerate(shapes)] for n in range(2)]
    final, x = random(30, WIDTH), random(31, ROWS, WIDTH)
    (found,) = run(module, x, [*weights[0], *weights[1], final])
    for before_attention, after_attention, qkv, before_mlp, after_mlp, gate_up, down in weights:
        x = x + rms_normed(attended(rms_normed(x, before_attention), qkv), after_attention)
        x = x + rms_normed(mlp(rms_normed(x, before_mlp), gate_up, down), after_mlp)
    np.testing.assert_allclose(found, rms_normed(x, final), rtol=1e-4, atol=1e-4)
