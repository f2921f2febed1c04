"""Matmul on stored weights, in every scheme: its description, with its parts, and definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import (
    GROUP,
    moved_share,
    pack,
    packed_placeholders,
    quantized_specs,
    rounded,
    unpack,
)
from gemma4_compile.operators.activations import (
    FLOAT32,
    FLOATS,
    PACKED,
    Activations,
    Int8,
    Output,
    PackedOutput,
    SteppedOutput,
)
from gemma4_compile.operators.base import Operator, TensorSpec, te_prim_func
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import Sizes, own_vector_error
from gemma4_compile.operators.math import as_f32, f32, gelu_tanh, softcap
from gemma4_compile.operators.packing import Packing, ProductPacking
from gemma4_compile.operators.packings import packing_of, product_packing
from gemma4_compile.operators.prologues import PLAIN, MadeVector, Prologue
from gemma4_compile.operators.rows import One, Rows
from gemma4_compile.operators.sampling import MASKED
from gemma4_compile.operators.spreads import Spread, of_both_signs
from gemma4_compile.operators.static_rounding import (
    example_of_matmul,
    rounded_sums,
    spreads_of_matmul,
)
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.types import Array

DENSE, INTEGERS = "dense", "integers"  # forms of storage


@dataclass(frozen=True)
class WeightLayout:
    """The stored form of a matrix and its row splits, in plain fields that an operator can carry.

    The two forms that ship are here: dense, and integers with a scale a group. Another one is a
    subclass with a field `form` of its own default, which says how its tensors look
    (`split_shapes`) and what they mean (`element`): every definition and kernel reads it by that.

    An integer means ``(q - zero_point) * scale``, with scales of either sign; `packing` has its
    words and zero point.

    Attributes
    ----------
    bits : bits of a stored integer, 0 for dense
    dtype : of the dense weight, or of the group scales
    group_size : input channels to a scale (0 for dense)
    split_rows : rows of each row split, in order
    """

    bits: int
    dtype: str
    group_size: int
    cols: int
    split_rows: tuple[int, ...]

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type[WeightLayout]:
        """Return the class of a layout from its fields."""
        forms = {vars(one)["form"]: one for one in cls.__subclasses__()}
        return forms.get(values.get("form"), cls)

    @property
    def form(self) -> str:
        """The form of storage."""
        return INTEGERS if self.bits else DENSE

    @property
    def rows(self) -> int:
        """Rows over all row splits."""
        return sum(self.split_rows)

    @property
    def tensors_per_split(self) -> int:
        """Two for integers with scales, one for dense."""
        return len(self.split_shapes(1))

    @property
    def packing(self) -> Packing:
        """How its integers lie in words."""
        return packing_of(self.bits)

    @property
    def products(self) -> ProductPacking:
        """The packing of integers that meet vectors of int8 (`takes_int8`)."""
        return product_packing(self.bits)

    @property
    def takes_int8(self) -> bool:
        """Whether quantised vectors can meet it: its packing says how, each group has a scale."""
        meets = self.form == INTEGERS and isinstance(self.packing, ProductPacking)
        return meets and self.group_size == GROUP

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator
    ) -> Array | None:
        """Words for which any 32 bits would not do, or None."""
        return self.packing.example_words(shape, rng) if self._is_words(name) else None

    def known_spreads(self, name: str) -> tuple[Spread, ...]:
        """As `example_input`; empty where the default does."""
        return self.packing.word_spreads if self._is_words(name) else ()

    def _is_words(self, name: str) -> bool:
        return self.form == INTEGERS and name.startswith("q_weight")

    @property
    def label(self) -> str:
        """A short name for kernels."""
        return f"q{self.bits}" if self.bits else self.dtype.replace("float", "f")

    def split_shapes(self, rows: int) -> list[tuple[str, tuple[int, int], str]]:
        """(name, shape, dtype) of the tensors of so many rows."""
        if not self.bits:
            return [("weight", (rows, self.cols), self.dtype)]
        return [
            ("q_weight", (rows, self.packing.words(self.cols)), "uint32"),
            ("q_scale", (rows, self.cols // self.group_size), self.dtype),
        ]

    def shapes(self) -> list[tuple[str, tuple[int, int], str]]:
        """(name, shape, dtype) of the tensors, row split by row split."""
        return [
            (f"{name}{index}", shape, dtype)
            for index, rows in enumerate(self.split_rows)
            for name, shape, dtype in self.split_shapes(rows)
        ]

    def placeholders(self) -> list[te.Tensor]:
        """TE inputs for all row splits."""
        return [te.placeholder(shape, dtype, name=name) for name, shape, dtype in self.shapes()]

    def element(self, split: Sequence[te.Tensor | Buffer], row: Expr, col: Expr) -> Expr:
        """The weight at (row, col) of one row split as float32."""
        if not self.bits:
            return as_f32(split[0][row, col])
        first, run = self.packing.words(col), self.packing.run
        integer = self.packing.integer(lambda at: split[0][row, first + at], col % run)
        return integer * as_f32(split[1][row, col // self.group_size])

    def value(self, tensors: Sequence[te.Tensor], row: Expr, col: Expr) -> Expr:
        """The weight at (row, col) over all row splits as float32, for definitions."""
        result: Expr | None = None
        begin, step = self.rows, self.tensors_per_split
        for index in reversed(range(len(self.split_rows))):
            begin -= self.split_rows[index]
            split = tensors[index * step : (index + 1) * step]
            item = self.element(split, row - begin, col)
            result = (
                item
                if result is None
                else tirx.if_then_else(row < begin + self.split_rows[index], item, result)
            )
        assert result is not None, "there is a row split"
        return result


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """X rounded to a dtype."""
    return te.compute(x.shape, lambda i, j: x[i, j].astype(dtype), name="rounded")


@dataclass(frozen=True)
class Linear(Operator):
    """``y = epilogue(x W^T)``, sums in float32.

    Arguments: x (rows, cols) in_dtype, or words and scales of it where that is PACKED, or for one
    position those of the prologue that makes it;
    the tensors of all row splits; the steps of a `SteppedOutput`; with GELU_GATE also the per-layer
    inputs (rows, ple_width) f32 and the layer index (int64 scalar, last). Results: those of the
    prologue; (rows, outputs) float32, where outputs is half the weight's rows for GELU_PAIRS and
    all of them otherwise; columns in `suppressed` (epilogues NONE and SOFTCAP) are MASKED.
    """

    kind: ClassVar[str] = "linear"
    rows: Rows
    layout: WeightLayout
    in_dtype: str
    epilogue: str = Epilogue.NONE.value
    cap: float = 0.0
    ple_width: int = 0
    suppressed: tuple[int, ...] = ()
    prologue: Prologue = PLAIN
    activations: Activations = FLOATS
    output: Output = FLOAT32

    @property
    def name(self) -> str:
        return self.prologue.prefix + self.rows.prefix + self.product_name

    @property
    def variant(self) -> str:
        form = "int8_" if self.is_int8 else ""
        return self.prologue.prefix + self.rows.prefix + form + self.kind

    @property
    def product_name(self) -> str:
        """The name without the prologue's."""
        product = "gemv" if isinstance(self.rows, One) else "gemm"
        form = "int8_" if self.is_int8 else "stepped_" if self.stepped_out else ""
        return f"{form}{product}_{self.layout.label}_{self.epilogue}"

    @property
    def is_int8(self) -> bool:
        """Whether vectors are multiplied as groups of int8."""
        return isinstance(self.activations, Int8)

    @property
    def tiled(self) -> bool:
        """Whether the words of packed rows of x are in tiles."""
        return isinstance(self.activations, Int8) and self.activations.tiled

    @property
    def packed_out(self) -> bool:
        """Whether the result is packed for the matrix that reads it."""
        return isinstance(self.output, PackedOutput)

    @property
    def stepped_out(self) -> SteppedOutput | None:
        """The steps that sums are rounded to; None where they are not."""
        return self.output if isinstance(self.output, SteppedOutput) else None

    @property
    def is_paired(self) -> bool:
        """Whether rows of the weight are gate and up by turns."""
        return self.epilogue == Epilogue.GELU_PAIRS.value

    @property
    def packs(self) -> bool:
        return self.is_int8

    @property
    def interleaved(self) -> bool:
        """The order of a packed x."""
        return self.layout.products.interleaved

    @property
    def is_plain(self) -> bool:
        """Whether the vectors come as they are."""
        return self.prologue == PLAIN

    @property
    def cols(self) -> int:
        """Channels of x."""
        return self.layout.cols

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.layout.rows // 2 if self.is_paired else self.layout.rows

    @property
    def result_specs(self) -> list[TensorSpec]:
        """Shapes and dtypes of the results of one position, besides a new residual."""
        return [*self.prologue.result_specs(self.cols), *self.product_specs]

    @property
    def product_specs(self) -> list[TensorSpec]:
        """Shapes and dtypes of the product of one position."""
        return (
            quantized_specs(self.outputs) if self.packed_out else [((1, self.outputs), "float32")]
        )

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        exact = example_of_matmul(name, self.layout.bits, shape, rng) if self.stepped_out else None
        if exact is not None:
            return exact
        if self._has_small_scales(name):
            return rng.uniform(2.0**-12, 2.0**-11, shape) * rng.choice([-1, 1], shape)
        own = self.prologue.example_input(name, shape, rng)
        return self.layout.example_input(name, shape, rng) if own is None else own

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        exact = spreads_of_matmul(name, self.layout.bits) if self.stepped_out else ()
        if exact:
            return exact
        if self._has_small_scales(name):
            return of_both_signs(2.0**-12)
        own = self.prologue.known_spreads(name) or self.layout.known_spreads(name)
        return own or super().known_spreads(name, dtype)

    def tolerance(self, result: str) -> float:
        # The new residual and the router's scores are made in float32.
        own = 0.0 if result in ("out", "routed") else self._vector_error
        return super().tolerance(result) + own

    @property
    def _vector_error(self) -> float:
        """The error of a vector that the kernel makes or rounds."""
        if self.is_int8:
            own = self.in_dtype != PACKED
            return own_vector_error(self.in_dtype, self.cols, True) if own else 0.0
        return 0.0 if self.is_plain else own_vector_error(self.in_dtype, 1, False)

    def moved_share(self) -> float:
        return moved_share(self._vector_error)

    def _has_small_scales(self, name: str) -> bool:
        """Sums of bytes with usual scales are far beyond a cap, where their errors are not."""
        is_capped = self.epilogue == Epilogue.SOFTCAP.value and self.layout.form == INTEGERS
        return is_capped and name.startswith("q_scale") and self.layout.packing.exceeds_caps

    def definition(self) -> tirx.PrimFunc:
        if self.is_plain:
            args, x = self.left()
            return self.multiply(args, x)
        assert isinstance(self.rows, One), "only one position has its vector made"
        made = self.prologue.make(self.cols, self.in_dtype)
        return self.multiply(made.args, self.rounded(made), made.results)

    def left(self) -> tuple[list[te.Tensor], te.Tensor]:
        """The arguments of x where it comes as it is, and x."""
        rows = self.rows.extent()
        if self.in_dtype == PACKED:
            words, scales = packed_placeholders(self.cols, rows, self.tiled)
            return [words, scales], unpack(words, scales, self.interleaved)
        x = te.placeholder((rows, self.cols), self.in_dtype, name="x")
        return [x], rounded(x) if self.is_int8 else x

    def rounded(self, made: MadeVector) -> te.Tensor:
        """A vector as it is multiplied."""
        if self.is_int8:
            return rounded(made.x)
        return cast(made.x, self.in_dtype) if made.is_rounded else made.x

    def multiply(
        self, args: Sequence[te.Tensor], x: te.Tensor, results: Sequence[te.Tensor] = ()
    ) -> tirx.PrimFunc:
        """The function that multiplies x, which was made from `args`, and also has `results`."""
        layout = self.layout
        weights = layout.placeholders()
        k = te.reduce_axis((0, self.cols), name="k")
        sums = te.compute(
            (x.shape[0], layout.rows),
            lambda i, j: te.sum(as_f32(x[i, k]) * layout.value(weights, j, k), axis=k),
            name="sums",
        )
        steps: list[te.Tensor] = []
        if self.stepped_out is not None:
            own, sums = rounded_sums(self.stepped_out, self.is_paired, sums)
            steps = [own]
        epilogue_args, y = self.apply_epilogue(sums)
        return te_prim_func([*args, *weights, *steps, *epilogue_args, *results, *self.stored(y)])

    def stored(self, y: te.Tensor) -> list[te.Tensor]:
        """The tensors that hold the result."""
        match self.output:
            case PackedOutput(interleaved=interleaved, tiled=tiled):
                return pack(y, interleaved, tiled)
        return [y]

    def logit(self, value: Expr, column: Expr) -> Expr:
        """A sum with epilogue NONE or SOFTCAP, or MASKED in the columns that are `suppressed`."""
        if self.epilogue == Epilogue.SOFTCAP.value:
            value = softcap(value, self.cap)
        for hidden in self.suppressed:
            value = tirx.Select(column == hidden, f32(MASKED), value)
        return value

    def apply_epilogue(self, sums: te.Tensor) -> tuple[list[Expr | Buffer | te.Tensor], te.Tensor]:
        """The epilogue's own arguments and the result, from the sums (rows, weight rows)."""
        rows = sums.shape[0]
        shape = (rows, self.outputs)
        if self.epilogue == Epilogue.NONE.value and not self.suppressed:
            return [], sums
        if self.is_paired:
            return [], te.compute(
                shape, lambda i, j: gelu_tanh(sums[i, 2 * j]) * sums[i, 2 * j + 1], name="y"
            )
        if self.epilogue in (Epilogue.NONE.value, Epilogue.SOFTCAP.value):
            return [], te.compute(shape, lambda i, j: self.logit(sums[i, j], j), name="y")
        ple = te.placeholder((rows, self.ple_width), "float32", name="ple")
        layer = tirx.Var("layer", "int64")
        return [ple, layer], te.compute(
            shape,
            lambda i, j: gelu_tanh(sums[i, j]) * ple[i, layer * self.outputs + j],
            name="y",
        )
