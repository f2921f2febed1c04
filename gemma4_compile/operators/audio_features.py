"""From samples to what the audio tower begins with: frames, log-mel spectrum, subsampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import te, tirx

from gemma4_compile.operators.base import Operator, TensorSpec, symbolic_rows, te_prim_func
from gemma4_compile.operators.math import as_f32, f32
from gemma4_compile.operators.pointwise import Columns, Pointwise
from gemma4_compile.operators.tir import i32
from gemma4_compile.operators.types import Buffer, Expr, Index

KERNEL = 3  # of the subsampling convolutions, in both directions


@dataclass(frozen=True)
class SoundFrames(Columns):
    """Frames of a sound, which may overlap: ``y[i, j] = samples[i * hop + j - before]``.

    Outside of the sound there is silence. Arguments: samples (count,) f32. Result: (rows, width).
    """

    kind: ClassVar[str] = "sound_frames"
    hop: int
    before: int
    out_dtype: str

    @property
    def result_dtype(self) -> str:
        return self.out_dtype

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [("samples", ((tirx.Var("samples", "int64"),), "float32"))]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        (samples,) = args
        place, last = i32(i) * self.hop + i32(j) - self.before, i32(samples.shape[0]) - 1
        inside = tirx.all(place >= 0, place <= last)
        sample = samples[tirx.max(tirx.min(place, last), i32(0))]
        return tirx.Select(inside, sample, f32(0.0))


@dataclass(frozen=True)
class Magnitude(Pointwise):
    """``sqrt(re^2 + im^2)`` of the bins of a spectrum.

    Arguments: x (rows, 2 * bins) f32, all real parts first. Result: (rows, bins) f32.
    """

    kind: ClassVar[str] = "magnitude"
    bins: int

    @property
    def outputs(self) -> int:
        return self.bins

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [("x", ((rows, 2 * self.bins), "float32"))]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        (x,) = args
        return tirx.sqrt(x[i, j] * x[i, j] + x[i, j + self.bins] * x[i, j + self.bins])


@dataclass(frozen=True)
class WindowedTransform(Pointwise):
    """The matrix of a Fourier transform of windowed frames, all real parts first.

    A library holds a circle of cosines instead of it: ``y[i, j] = window[j] * cos(2 pi i j / n)``
    for the first half of the rows, and ``-sin`` for the second. Arguments: samples (count,) f32,
    which nothing is read of: of constants alone the compiler would make a constant; cosines (n,)
    f32 of ``2 pi k / n``; window (width,) f32. Result: (rows, width) f32; a row for each of both
    parts of the bins.
    """

    kind: ClassVar[str] = "windowed_transform"
    bins: int
    width: int
    turn: int

    @property
    def outputs(self) -> int:
        return self.width

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [
            ("samples", ((tirx.Var("samples", "int64"),), "float32")),
            ("cosines", ((self.turn,), "float32")),
            ("window", ((self.width,), "float32")),
        ]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        _, cosines, window = args
        is_real = i32(i) < self.bins
        quarter = tirx.Select(is_real, i32(0), i32(self.turn // 4))  # -sin x = cos(x + pi / 2)
        place = tirx.truncmod((i32(i) % self.bins) * i32(j) + quarter, i32(self.turn))
        return cosines[place] * window[j]


@dataclass(frozen=True)
class LogMel(Columns):
    """``log(x + floor)``: (rows, width) f32."""

    kind: ClassVar[str] = "log_mel"
    floor: float

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        return [("mel", ((rows, self.width), "float32"))]

    def value(self, args: Sequence[Buffer], i: Expr, j: Expr) -> Expr:
        return tirx.log(tirx.max(args[0][i, j], f32(0.0)) + f32(self.floor))


def halved(size: Index) -> Index:
    """Places of a convolution of stride 2 that is padded by 1."""
    return (size + 1) // 2


@dataclass(frozen=True)
class SubsampleConv(Operator):
    """Halve time and frequency: 3x3 convolution of stride 2, LayerNorm over channels, ReLU.

    Arguments: x (rows, frequencies * in_channels) in_dtype, the channels of a frequency next to
    each other; weight (out_channels * in_channels * 3, 3) f32, rows over time; norm (out_channels,)
    f32, the LayerNorm's weight, which has no bias. Result: (rows / 2, frequencies / 2 *
    out_channels) out_dtype, both halves rounded up. Places outside of x are zero.

    References
    ----------
    transformers 5.24.0, `Gemma4AudioSubSampleConvProjectionLayer`.
    """

    kind: ClassVar[str] = "subsample_conv"
    frequencies: int
    in_channels: int
    out_channels: int
    eps: float
    in_dtype: str
    out_dtype: str

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return int(halved(self.frequencies)) * self.out_channels

    def arguments(self, rows: Index) -> list[tuple[str, TensorSpec]]:
        """Names, shapes and dtypes of the arguments."""
        weights = self.out_channels * self.in_channels * KERNEL
        return [
            ("x", ((rows, self.frequencies * self.in_channels), self.in_dtype)),
            ("weight", ((weights, KERNEL), "float32")),
            ("norm", ((self.out_channels,), "float32")),
        ]

    def place(self, x: Buffer, time: Expr, frequency: Expr, channel: Expr) -> Expr:
        """A value of x, or zero beyond its edges."""
        last_time, last = i32(x.shape[0]) - 1, self.frequencies - 1
        inside = tirx.all(time >= 0, time <= last_time, frequency >= 0, frequency <= last)
        row = tirx.max(tirx.min(time, last_time), i32(0))
        column = tirx.max(tirx.min(frequency, i32(last)), i32(0)) * self.in_channels + channel
        return tirx.Select(inside, as_f32(x[row, column]), f32(0.0))

    def definition(self) -> tirx.PrimFunc:
        rows, channels = symbolic_rows(None), self.out_channels
        args = [te.placeholder(*spec, name=name) for name, spec in self.arguments(rows)]
        x, weight, norm = args
        shape = (halved(rows), int(halved(self.frequencies)), channels)
        c = te.reduce_axis((0, self.in_channels), name="c")
        u = te.reduce_axis((0, KERNEL), name="u")
        v = te.reduce_axis((0, KERNEL), name="v")
        sums = te.compute(
            shape,
            lambda t, f, o: te.sum(
                self.place(x, i32(t) * 2 + u - 1, i32(f) * 2 + v - 1, c)
                * weight[(o * self.in_channels + c) * KERNEL + u, v],
                axis=[c, u, v],
            ),
            name="sums",
        )
        o1 = te.reduce_axis((0, channels), name="o1")
        total = te.compute(shape[:2], lambda t, f: te.sum(sums[t, f, o1], axis=o1), name="total")
        o2 = te.reduce_axis((0, channels), name="o2")

        def centred(t: Expr, f: Expr, o: Expr) -> Expr:
            return sums[t, f, o] - total[t, f] / f32(channels)

        squares = te.compute(
            shape[:2],
            lambda t, f: te.sum(centred(t, f, o2) * centred(t, f, o2), axis=o2),
            name="squares",
        )

        def normed(t: Expr, j: Expr) -> Expr:
            f, o = j // channels, j % channels
            inverse = tirx.rsqrt(squares[t, f] / f32(channels) + f32(self.eps))
            value = tirx.max(centred(t, f, o) * inverse * norm[o], f32(0.0))
            return value.astype(self.out_dtype)

        y = te.compute((shape[0], self.outputs), normed, name="y")
        return te_prim_func([*args, y])
