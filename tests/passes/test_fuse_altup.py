"""Before and Expected of the per-layer input that the next layer's prediction adds."""

from __future__ import annotations

import pytest
from tvm.relax.frontend import nn

from gemma4_compile.operators.altup import VECTORS, AltupInject, AltupPredict, SplitStreams
from gemma4_compile.operators.base import TensorSpec
from gemma4_compile.operators.rows import ONE
from gemma4_compile.passes.fuse_altup import fuse_altup
from gemma4_compile.passes.fusion_limits import FusionLimits
from tests.passes.operator_modules import F32, Tensors, assert_same, call, module, rewritten

STREAMS, WIDTH, EPS = 3, 8, 1e-6
ALL: TensorSpec = ((1, STREAMS * WIDTH), F32)
ONE_STREAM: TensorSpec = ((1, WIDTH), F32)
INPUTS: dict[str, TensorSpec] = {
    "injected": ONE_STREAM,
    "y": ALL,
    "last": ((VECTORS, WIDTH), F32),
    "vectors": ((VECTORS, WIDTH), F32),
    "router": ((STREAMS, WIDTH), F32),
    "coefs": ((STREAMS * (STREAMS + 1), STREAMS), F32),
}
INJECT = AltupInject(ONE, STREAMS, WIDTH, EPS)
ROUTING = ("vectors", "router", "coefs")


def apart(x: Tensors) -> list[nn.Tensor]:
    (streams,) = call(INJECT, [x["injected"], x["y"], x["last"]], ALL)
    operator = AltupPredict(ONE, STREAMS, WIDTH, 1, EPS, "float16")
    args = [streams, *(x[name] for name in ROUTING)]
    return [*call(operator, args, ALL, ((1, WIDTH), "float16")), streams]


def test_what_only_the_prediction_reads_is_added_by_it() -> None:
    def together(x: Tensors) -> list[nn.Tensor]:
        operator = AltupPredict(ONE, STREAMS, WIDTH, 1, EPS, "float16", injects=True)
        args = [x[name] for name in ("injected", "y", "last", *ROUTING)]
        return call(operator, args, ALL, ((1, WIDTH), "float16"))

    found = rewritten(module(INPUTS, lambda x: apart(x)[:2]), FusionLimits(8), fuse_altup)
    assert_same(found, module(INPUTS, together))


def split(x: Tensors) -> list[nn.Tensor]:
    (streams,) = call(INJECT, [x["injected"], x["y"], x["last"]], ALL)
    return [*call(SplitStreams(ONE, STREAMS, WIDTH), [streams], *[ONE_STREAM] * STREAMS), streams]


def test_streams_that_are_read_apart_are_written_apart() -> None:
    def together(x: Tensors) -> list[nn.Tensor]:
        operator = AltupInject(ONE, STREAMS, WIDTH, EPS, apart=True)
        return call(operator, [x["injected"], x["y"], x["last"]], *[ONE_STREAM] * STREAMS)

    found = rewritten(module(INPUTS, lambda x: split(x)[:-1]), FusionLimits(6), fuse_altup)
    assert_same(found, module(INPUTS, together))


@pytest.mark.parametrize(("limit", "results"), [(5, STREAMS), (6, STREAMS + 1)])
def test_streams_that_others_read_and_too_many_buffers_stay_together(
    limit: int, results: int
) -> None:
    before = module(INPUTS, lambda x: split(x)[:results])
    assert_same(rewritten(before, FusionLimits(limit), fuse_altup), before)


@pytest.mark.parametrize(("limit", "results"), [(7, 2), (8, 3)])
def test_streams_that_others_read_and_too_many_buffers_stay(limit: int, results: int) -> None:
    before = module(INPUTS, lambda x: apart(x)[:results])
    assert_same(rewritten(before, FusionLimits(limit), fuse_altup), before)
