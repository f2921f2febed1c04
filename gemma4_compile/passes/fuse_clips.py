"""Bounds, SiLU, bias and residual of a conformer layer in the launches between its matmuls.

Matmuls clip what they take and what they give, each in a `clip` of its own. Before::

    y = clip(clip(clip(x, after), silu), before)         between two matmuls
    y = clip(clipped_norm(add(clip(x, after), bias)), before)
    y = add(residual, multiply(clipped_norm(x), factor))
    y = add(residual, clip(x, after))
    y = gated_conv(clip(x, after))
    y = clip(relative_attention(clip(q, after), clip(k, after), clip(v, after)), before)

After::

    y = clip(x, after, silu, before)
    y = clipped_norm(x, bias, after, before)
    y = clipped_norm(x, residual, factor)
    y = add_clipped(x, residual, after)
    y = gated_conv(x, after)
    y = relative_attention(q, k, v, after, before)
"""

from __future__ import annotations

from dataclasses import replace

import tvm
import tvm_ffi
from tvm import relax

from gemma4_compile.operators.conformer import (
    AddClipped,
    Clip,
    ClippedNorm,
    GatedConv,
    RelativeAttention,
)
from gemma4_compile.passes.fusion_limits import FusionLimits
from gemma4_compile.passes.operator_graph import BuiltIn, OperatorCall, OperatorGraph, is_call_of

_ADD, _MULTIPLY, _F32 = "relax.add", "relax.multiply", "float32"
ClipCall = OperatorCall[Clip]


def fuse_clips(graph: OperatorGraph, limits: FusionLimits) -> None:
    """Fuse what stands between two matmuls of a conformer layer."""
    del limits  # every target has the fused operators, and they bind few buffers
    if not graph.calls(ClippedNorm) and not graph.calls(Clip):
        return
    for clip in graph.calls(Clip):
        _join(graph, clip)
    for attention in graph.calls(RelativeAttention):
        _clip_attention(graph, attention)
    for clip in graph.calls(Clip):
        _leave_norm(graph, clip)
    for norm in graph.calls(ClippedNorm):
        _enter_norm(graph, norm)
    for conv in graph.calls(GatedConv):
        _clip_conv(graph, conv)
    for addition in graph.calls_of_built_in(_ADD):
        _add_norm(graph, addition)
    for addition in graph.calls_of_built_in(_ADD):
        _add_clipped(graph, addition)


def _result_clip(graph: OperatorGraph, tensor: relax.Expr) -> ClipCall | None:
    """The bounds of a matmul's result alone, which nothing else reads."""
    clip = graph.only_producer(tensor, Clip)
    if clip is None:
        return None
    operator = clip.operator
    plain = not (operator.silu or operator.before)
    is_f32 = operator.in_dtype == operator.out_dtype == _F32
    return clip if operator.after and plain and is_f32 else None


def _join(graph: OperatorGraph, clip: ClipCall) -> None:
    """Two clips one after the other, where their parts are in the order of one."""
    first, second = graph.only_producer(clip.args[0], Clip), clip.operator
    if first is None:
        return
    begin = first.operator
    repeated = second.after or begin.before or (begin.silu and second.silu)
    if repeated or begin.out_dtype != _F32:
        return
    operator = replace(
        begin,
        out_dtype=second.out_dtype,
        silu=begin.silu or second.silu,
        before=second.before,
    )
    args = [*first.args, *clip.args[1:]]
    graph.replace([first, clip], [OperatorCall(operator, args, clip.results)])


def _leave_norm(graph: OperatorGraph, clip: ClipCall) -> None:
    """SiLU and the next matmul's bounds, as a norm leaves; bounding and rounding commute."""
    norm, operator = graph.only_producer(clip.args[0], ClippedNorm), clip.operator
    if norm is None:
        return
    old = norm.operator
    rounded = operator.silu and old.out_dtype != _F32
    if operator.after or old.before or old.factor or rounded or (old.silu and operator.silu):
        return
    fused = replace(
        old,
        out_dtype=operator.out_dtype,
        silu=old.silu or operator.silu,
        before=operator.before,
    )
    args = [*norm.args, *clip.args[1:]]
    graph.replace([norm, clip], [OperatorCall(fused, args, clip.results)])


def _enter_norm(graph: OperatorGraph, norm: OperatorCall[ClippedNorm]) -> None:
    """A bias and the bounds of the matmul before, as a norm reads its rows."""
    x, *others = norm.args
    bias = graph.built_in(x, _ADD)
    if bias is not None and not norm.operator.biased and not norm.operator.after:
        value, vector = bias.args
        is_vector = list(vector.ty.shape) == [norm.operator.width]
        if is_vector and graph.reader_count(bias.results[0]) == 1:
            biased = replace(norm.operator, biased=True)
            call = OperatorCall(biased, [value, vector, *others], norm.results)
            graph.replace([bias, norm], [call])
            norm = call
    clip = _result_clip(graph, norm.args[0])
    if clip is not None and not norm.operator.after:
        x, *others = norm.args
        at = int(norm.operator.biased)
        args = [clip.args[0], *others[:at], *clip.args[1:], *others[at:]]
        fused = replace(norm.operator, after=True)
        graph.replace([clip, norm], [OperatorCall(fused, args, norm.results)])


def _add_norm(graph: OperatorGraph, addition: BuiltIn) -> None:
    """``residual + factor * norm``, the factor a constant."""
    residual, branch = addition.args
    product, factor = graph.built_in(branch, _MULTIPLY), 1.0
    steps: list[BuiltIn] = [addition]
    if product is not None and graph.reader_count(product.results[0]) == 1:
        branch, constant = product.args
        if not isinstance(constant, tvm.ir.GenericConst) or constant.ty.ndim:
            return
        factor = float(constant.value.numpy())
        steps = [product, addition]
    norm = graph.only_producer(branch, ClippedNorm)
    if norm is None or norm.operator.factor or norm.operator.out_dtype != _F32 or not factor:
        return
    if not _same_shape(residual, branch):
        return
    fused = replace(norm.operator, factor=factor)
    call = OperatorCall(fused, [*norm.args, residual], addition.results)
    graph.replace([norm, *steps], [call])


def _add_clipped(graph: OperatorGraph, addition: BuiltIn) -> None:
    """``residual + clip(x)``."""
    residual, branch = addition.args
    clip = _result_clip(graph, branch)
    if clip is None or not _same_shape(residual, branch):
        return
    args = [clip.args[0], residual, *clip.args[1:]]
    call = OperatorCall(AddClipped(clip.operator.width, True), args, addition.results)
    graph.replace([clip, addition], [call])


def _same_shape(first: relax.Expr, second: relax.Expr) -> bool:
    return tvm_ffi.structural_equal(first.ty, second.ty)


def _clip_conv(graph: OperatorGraph, conv: OperatorCall[GatedConv]) -> None:
    clip = _result_clip(graph, conv.args[0])
    if clip is None or conv.operator.clips:
        return
    args = [clip.args[0], *conv.args[1:], *clip.args[1:]]
    call = OperatorCall(replace(conv.operator, clips=True), args, conv.results)
    graph.replace([clip, conv], [call])


def _clip_attention(graph: OperatorGraph, attention: OperatorCall[RelativeAttention]) -> None:
    """All bounds around attention, or none: those of q, k, v and of the matmul behind it."""
    found = [_result_clip(graph, tensor) for tensor in attention.args[:3]]
    clips = [clip for clip in found if clip is not None]
    last = graph.only_reader(attention.results[0])
    if len(clips) < 3 or not is_call_of(last, Clip):
        return
    operator = last.operator
    if operator.after or operator.silu or not operator.before or operator.out_dtype != _F32:
        return
    bounds = [one for clip in (*clips, last) for one in clip.args[1:]]
    args = [*(clip.args[0] for clip in clips), *attention.args[3:], *bounds]
    call = OperatorCall(replace(attention.operator, clips=True), args, last.results)
    graph.replace([*clips, attention, last], [call])
