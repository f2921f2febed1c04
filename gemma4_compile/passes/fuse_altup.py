"""The per-layer input that a layer adds to its streams, in the launch that begins the next layer.

Before::

    x = altup_inject(injected, corrected, vectors)
    predicted, hidden = altup_predict(x, next_vectors, router, coefs)

After::

    predicted, hidden = altup_predict(injected, corrected, vectors, next_vectors, router, coefs)

Behind the last layer, where each stream is read by itself, the injection writes them so::

    first, second, ... = altup_inject(injected, corrected, vectors)
"""

from __future__ import annotations

from dataclasses import replace

from gemma4_compile.operators.altup import AltupInject, AltupPredict, SplitStreams
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import OperatorCall, OperatorGraph


def fuse_altup(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse each prediction, and the end, with the injection that only it reads."""
    for predict in graph.calls(AltupPredict):
        inject = graph.only_producer(predict.args[0], AltupInject)
        if inject is None or inject.operator.rows != predict.operator.rows:
            continue
        operator = replace(predict.operator, injects=True)
        args = [*inject.args, *predict.args[1:]]
        if not limits.binds(args, len(predict.results)):
            continue
        graph.replace([inject, predict], [OperatorCall(operator, args, predict.results)])
    for split in graph.calls(SplitStreams):
        inject = graph.only_producer(split.args[0], AltupInject)
        if inject is None or not limits.binds(inject.args, len(split.results)):
            continue
        apart = replace(inject.operator, apart=True)
        graph.replace([inject, split], [OperatorCall(apart, inject.args, split.results)])
