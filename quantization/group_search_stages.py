"""The stages of `group_search`, over blocks of LANES groups: loops over lanes are vectorised.

Arrays of one number a lane are handed on and used again: registers are few.
"""

# TVM reads the stages, whose arguments are its buffers.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

GROUP = 32
LANES = 16  # groups that are searched side by side
UNIT = 16384.0  # the largest weight, in the integers among which ratios are compared
COARSE = 64.0  # scales in units of the smallest: below it the rounded step may be a poor one
TRIED = 72  # of these, from a twelfth of the largest weight to a quarter and more

Expr = Any  # of TVM, which has no types


def _bits(value: Expr) -> Expr:
    return T.reinterpret("uint32", value)


def _power(value: Expr) -> Expr:
    """The largest power of two up to a number."""
    return T.reinterpret("float32", _bits(value) & T.uint32(0x7F800000))


def _to_float16(value: Expr) -> Expr:
    """The float16 nearest to a positive number, ties to even, at most the largest."""
    odd = (_bits(value) >> T.uint32(13)) & T.uint32(1)
    normal = (_bits(value) + (T.uint32(0xFFF) + odd)) & T.uint32(0xFFFFE000)
    small = T.nearbyint(value * T.float32(2.0**24)) * T.float32(2.0**-24)
    rounded = T.Select(value < T.float32(2.0**-14), small, T.reinterpret("float32", normal))
    return T.min(rounded, T.float32(65504))


def _to_scale(value: Expr, scale_dtype: str) -> Expr:
    return _to_float16(value) if scale_dtype == "float16" else value


def _scale_step(value: Expr, scale_dtype: str) -> Expr:
    """A unit in the last place of a scale."""
    if scale_dtype == "float16":
        return T.max(_power(value) * T.float32(2.0**-10), T.float32(2.0**-24))
    return T.max(_power(value) * T.float32(2.0**-23), T.float32(2.0**-149))


def _of_storage(used: Expr, bfloat16: Expr, float16: Expr, float32: Expr) -> Expr:
    """What belongs to the narrowest dtype that holds numbers with these bits in use."""
    rest = T.Select((used & T.uint32(0x1FFF)) == T.uint32(0), float16, float32)
    return T.Select((used & T.uint32(0xFFFF)) == T.uint32(0), bfloat16, rest)


@T.inline
def turn_positive(b, weights, x, whole, turn, largest, a0, b0):
    """Load a block of groups, turned, and as integers; what is largest, and how it was turned."""
    for n in range(LANES):
        largest[n] = T.float32(0)
        a0[n] = T.float32(0)
    for i in range(GROUP):
        for n in range(LANES):
            x[i, n] = weights[b, n, i]
            largest[n] = T.max(largest[n], x[i, n])
            a0[n] = T.max(a0[n], T.float32(0) - x[i, n])
    for n in range(LANES):
        turn[n] = T.Select(largest[n] >= a0[n], T.float32(1), T.float32(-1))
        largest[n] = T.max(largest[n], a0[n])
        # Where UNIT / largest would overflow, both are 2^64 times as large.
        a0[n] = T.Select(largest[n] < T.float32(2.0**-60), T.float32(2.0**64), T.float32(1))
        b0[n] = T.Select(largest[n] == T.float32(0), T.float32(1), largest[n] * a0[n])
        b0[n] = T.float32(UNIT) / b0[n]
    for i in range(GROUP):
        for n in range(LANES):
            x[i, n] = x[i, n] * turn[n]
            whole[i, n] = T.nearbyint(x[i, n] * a0[n] * b0[n])


@T.inline
def best_ratio(ratios, whole, low, inverse, a0, b0, a1, b1, score, best, count):
    """Find range and inverse step: the square error is that of the weights less ``a^2 / b``."""
    for n in range(LANES):
        best[n] = T.float32(-1)
        inverse[n] = T.float32(0)
        low[n] = T.float32(-7)
    for c in range(count):
        for n in range(LANES):
            a0[n] = T.float32(0)
            b0[n] = T.float32(0)
            a1[n] = T.float32(0)
            b1[n] = T.float32(0)
        for i in range(GROUP):
            for n in range(LANES):
                nearest: T.let = T.nearbyint(whole[i, n] * ratios[c])
                level0: T.let = T.min(T.max(nearest, T.float32(-7)), T.float32(8))
                level1: T.let = T.min(T.max(nearest, T.float32(-8)), T.float32(7))
                a0[n] = a0[n] + whole[i, n] * level0
                b0[n] = b0[n] + level0 * level0
                a1[n] = a1[n] + whole[i, n] * level1
                b1[n] = b1[n] + level1 * level1
        for n in range(LANES):
            score[n] = a0[n] * a0[n] / T.max(b0[n], T.float32(1))
            b0[n] = b0[n] / T.max(a0[n], T.float32(1))
            inverse[n] = T.Select(score[n] > best[n], b0[n], inverse[n])
            low[n] = T.Select(score[n] > best[n], T.float32(-7), low[n])
            best[n] = T.max(score[n], best[n])
            score[n] = a1[n] * a1[n] / T.max(b1[n], T.float32(1))
            b1[n] = b1[n] / T.max(a1[n], T.float32(1))
            inverse[n] = T.Select(score[n] > best[n], b1[n], inverse[n])
            low[n] = T.Select(score[n] > best[n], T.float32(-8), low[n])
            best[n] = T.max(score[n], best[n])


@T.inline
def error_of(x, level, step, lowest, highest, dot, squares, error):
    """Levels nearest to a step, and their square error, less that of the weights."""
    for n in range(LANES):
        dot[n] = T.float64(0)
        squares[n] = T.float64(0)
    for i in range(GROUP):
        for n in range(LANES):
            closest: T.let = T.nearbyint(x[i, n] / step[n])
            level[i, n] = T.min(T.max(closest, lowest[n]), highest[n])
            wide: T.let = T.Cast("float64", level[i, n])
            dot[n] = dot[n] + T.Cast("float64", x[i, n]) * wide
            squares[n] = squares[n] + wide * wide
    for n in range(LANES):
        wide_step: T.let = T.Cast("float64", step[n])
        error[n] = wide_step * (wide_step * squares[n] - T.float64(2) * dot[n])


@T.inline
def keep_better(level, best_level, step, best_step, error, best_error):
    """Keep a step and its levels where their error is the smallest so far."""
    for n in range(LANES):
        best_step[n] = T.Select(error[n] < best_error[n], step[n], best_step[n])
    for i in range(GROUP):
        for n in range(LANES):
            best_level[i, n] = T.Select(error[n] < best_error[n], level[i, n], best_level[i, n])
    for n in range(LANES):
        best_error[n] = T.min(error[n], best_error[n])


@T.inline
def fit_steps(
    x,
    whole,
    level,
    best_level,
    largest,
    low,
    inverse,
    a0,
    b0,
    a1,
    b1,
    step,
    best_step,
    dot,
    squares,
    error,
    best_error,
    scale_dtype,
    smallest,
    normal,
):
    """Find the step and the levels of the smallest square error; the last try is the plain rule."""
    for n in range(LANES):
        dot[n] = T.float64(0)
        squares[n] = T.float64(0)
        best_error[n] = T.float64(0)
        best_step[n] = T.float32(smallest)
        a0[n] = T.float32(0)
        b0[n] = T.float32(0)
    for i in range(GROUP):
        for n in range(LANES):
            nearest: T.let = T.nearbyint(whole[i, n] * inverse[n])
            level[i, n] = T.min(T.max(nearest, low[n]), low[n] + T.float32(15))
            best_level[i, n] = T.float32(0)
            a0[n] = T.max(a0[n], level[i, n])
            b0[n] = T.min(b0[n], level[i, n])
            wide: T.let = T.Cast("float64", level[i, n])
            dot[n] = dot[n] + T.Cast("float64", x[i, n]) * wide
            squares[n] = squares[n] + wide * wide
    # Levels may have a factor: of all such, those whose step the scale's dtype holds best.
    for n in range(LANES):
        step[n] = T.float32(1)
        best_error[n] = T.float64(3.0e38)
    for k in range(1, 9):
        for n in range(LANES):
            factor: T.let = T.Cast("float32", k)
            fits: T.let = T.max(factor * a0[n] - low[n] - T.float32(15), low[n] - factor * b0[n])
            a1[n] = T.Select(fits <= T.float32(0), T.float32(1), T.float32(0))
            whole_step: T.let = dot[n] / T.max(squares[n], T.float64(1))
            b1[n] = T.Cast("float32", whole_step / T.Cast("float64", k))
        for n in range(LANES):
            b1[n] = T.max(_to_scale(b1[n], scale_dtype), T.float32(smallest))
            off: T.let = T.Cast("float64", b1[n]) * T.Cast("float64", k) - dot[n] / T.max(
                squares[n], T.float64(1)
            )
            error[n] = T.Select(a1[n] > T.float32(0), T.fabs(off), T.float64(3.0e38))
            step[n] = T.Select(error[n] < best_error[n], T.Cast("float32", k), step[n])
            best_error[n] = T.min(error[n], best_error[n])
    for n in range(LANES):
        dot[n] = dot[n] * T.Cast("float64", step[n])
        squares[n] = squares[n] * T.Cast("float64", step[n] * step[n])
        best_error[n] = T.float64(0)
        b1[n] = T.float32(7)
    for t in range(4):  # the last one is the plain rule
        for n in range(LANES):
            fitted: T.let = T.Cast("float32", dot[n] / T.max(squares[n], T.float64(1)))
            step[n] = T.Select(t == 3, largest[n] / b1[n], fitted)
        for n in range(LANES):
            step[n] = T.max(_to_scale(step[n], scale_dtype), T.float32(smallest))
            # Coarse steps of the plain rule clip nothing.
            a1[n] = T.Select(step[n] < T.float32(normal), T.float32(smallest), T.float32(0))
            a1[n] = T.Select(step[n] * T.float32(7) < largest[n], a1[n], T.float32(0))
            step[n] = step[n] + T.Select(t == 3, a1[n], T.float32(0))
            a0[n] = T.Select(t == 3, T.float32(-7), low[n])
            b0[n] = T.Select(t == 3, T.float32(7), low[n] + T.float32(15))
        error_of(x, level, step, a0, b0, dot, squares, error)
        keep_better(level, best_level, step, best_step, error, best_error)


@T.inline
def try_coarse_steps(
    x,
    level,
    best_level,
    largest,
    low,
    a0,
    b0,
    a1,
    step,
    best_step,
    dot,
    squares,
    error,
    best_error,
    smallest,
):
    """Try each scale of use: for groups whose step loses much when it is rounded."""
    for n in range(LANES):
        b0[n] = T.floor(largest[n] / T.float32(smallest) / T.float32(12))
        b0[n] = T.max(b0[n], T.float32(1))
    for k in range(TRIED):
        for least in range(2):
            for n in range(LANES):
                step[n] = (b0[n] + T.Cast("float32", k)) * T.float32(smallest)
                a0[n] = T.Cast("float32", -7 - least)
                a1[n] = T.Cast("float32", 8 - least)
            error_of(x, level, step, a0, a1, dot, squares, error)
            for n in range(LANES):
                low[n] = T.Select(error[n] < best_error[n], a0[n], low[n])
            keep_better(level, best_level, step, best_step, error, best_error)


@T.inline
def keep_stored_values(
    x,
    best_level,
    a0,
    b0,
    a1,
    b1,
    score,
    step,
    best_step,
    dot,
    squares,
    used,
    last,
    scale_dtype,
    smallest,
):
    """Find a step between `dot` and `squares`: of these every weight is what was stored."""
    for n in range(LANES):
        used[n] = T.uint32(0)
    for i in range(GROUP):
        for n in range(LANES):
            used[n] = used[n] | _bits(x[i, n])
    for n in range(LANES):
        last[n] = _of_storage(used[n], T.uint32(1 << 16), T.uint32(1 << 13), T.uint32(1))
        a0[n] = _of_storage(used[n], T.float32(2.0**-8), T.float32(2.0**-11), T.float32(2.0**-24))
        dot[n] = T.float64(0)
        squares[n] = T.float64(3.0e38)
    for i in range(GROUP):
        for n in range(LANES):
            # Half of a unit in the last place; a tie goes to the even neighbour, and below
            # a power of two units are half as large.
            half: T.let = _power(x[i, n]) * a0[n]
            is_even: T.let = (_bits(x[i, n]) & last[n]) == T.uint32(0)
            is_power: T.let = (_bits(x[i, n]) & T.uint32(0x7FFFFF)) == T.uint32(0)
            b0[n] = T.Select(is_even, half, half * T.float32(1 - 2.0**-10))
            b1[n] = T.Select(is_power, b0[n] * T.float32(0.5), b0[n])
            a1[n] = T.Select(best_level[i, n] < T.float32(0), T.float32(0) - x[i, n], x[i, n])
        for n in range(LANES):
            over: T.let = T.max(T.Cast("float64", T.fabs(best_level[i, n])), T.float64(1))
            least: T.let = (T.Cast("float64", a1[n]) - T.Cast("float64", b1[n])) / over
            most: T.let = (T.Cast("float64", a1[n]) + T.Cast("float64", b0[n])) / over
            never: T.let = T.Select(x[i, n] == T.float32(0), T.float64(0), T.float64(3.0e38))
            is_zero: T.let = best_level[i, n] == T.float32(0)
            dot[n] = T.max(dot[n], T.Select(is_zero, never, least))
            squares[n] = T.min(squares[n], T.Select(is_zero, T.float64(3.0e38), most))
    for n in range(LANES):
        within: T.let = T.min(T.max(T.Cast("float64", best_step[n]), dot[n]), squares[n])
        step[n] = T.max(_to_scale(T.Cast("float32", within), scale_dtype), T.float32(smallest))
        b0[n] = _scale_step(step[n], scale_dtype)
        b1[n] = step[n]
        score[n] = T.float32(0)  # 1 where a step is found
    for k in range(3):  # the nearest one may be on the other side of a bound
        for n in range(LANES):
            units: T.let = T.Select(k == 2, T.float32(1), T.Cast("float32", 0 - k))
            a0[n] = b1[n] + units * b0[n]
            a1[n] = T.Select(T.Cast("float64", a0[n]) < dot[n], T.float32(0), T.float32(1))
            a1[n] = T.Select(T.Cast("float64", a0[n]) > squares[n], T.float32(0), a1[n])
            step[n] = T.Select(score[n] < a1[n], a0[n], step[n])
            score[n] = T.max(score[n], a1[n])
    for n in range(LANES):
        step[n] = T.Select(score[n] == T.float32(0), best_step[n], step[n])


@T.inline
def write_codes(b, words, scales, exact, best_level, turn, largest, low, a0, score, step, used):
    """Write scales, and codes in words."""
    for n in range(LANES):
        a0[n] = T.Select(low[n] < T.float32(-7.5), T.float32(-1), T.float32(1))
        scales[b, n] = T.Select(
            largest[n] == T.float32(0), T.float32(0), step[n] * (a0[n] * turn[n])
        )
        exact[b, n] = T.Cast("uint8", score[n])
    for j in range(GROUP // 8):
        for n in range(LANES):
            used[n] = T.uint32(0)
        for k in range(8):
            for n in range(LANES):
                code: T.let = T.Cast("int32", best_level[j * 8 + k, n] * a0[n] + T.float32(7))
                used[n] = used[n] | (T.Cast("uint32", code) << T.Cast("uint32", k * 4))
        for n in range(LANES):
            words[b, n, j] = used[n]
