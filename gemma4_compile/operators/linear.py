"""Matmul on stored weights, in every scheme: its description, with its parts, and definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from tvm import te, tirx

from gemma4_compile.operators.activation_quantization import (
    moved_share,
    pack,
    packed_placeholders,
    quantized_specs,
    rounded,
    unpack,
)
from gemma4_compile.operators.activations import (
    AS_FLOATS,
    FLOAT32,
    FLOATS,
    INTERLEAVED,
    PACKED,
    Activations,
    Halved,
    HalvedInt8,
    Int8,
    Output,
    PackedOutput,
    ScaledHalves,
    Stepped,
    SteppedOutput,
)
from gemma4_compile.operators.base import Operator, TensorSpec, te_prim_func
from gemma4_compile.operators.epilogue import Epilogue
from gemma4_compile.operators.examples import HALF_ULP_F16, Sizes, own_vector_error
from gemma4_compile.operators.halved_rows import halved_placeholders, halved_vectors
from gemma4_compile.operators.math import as_f32, f32, gelu_tanh, softcap
from gemma4_compile.operators.prologues import PLAIN, MadeVector, Prologue
from gemma4_compile.operators.rows import One, Rows
from gemma4_compile.operators.sampling import MASKED
from gemma4_compile.operators.spreads import Spread, of_both_signs
from gemma4_compile.operators.static_rounding import (
    READER_STEPS,
    STEPS,
    example_of_matmul,
    rounded_sums,
    rounded_to,
    spreads_of_matmul,
    step_words,
    stepped_vector_error,
    steps_of_words,
    words_spec,
)
from gemma4_compile.operators.types import Buffer, Expr
from gemma4_compile.operators.weight_layout import DENSE as DENSE
from gemma4_compile.operators.weight_layout import INTEGERS as INTEGERS
from gemma4_compile.operators.weight_layout import WeightLayout as WeightLayout
from gemma4_compile.types import Array

GELU_SLOPE = 1.13  # a sum's error may be as much larger behind it

Product = Callable[[te.Tensor, WeightLayout, Sequence[te.Tensor]], te.Tensor]
"""Makes sums (rows, weight rows) float32 of x and the tensors of a weight."""

Tensors = tuple[list[Expr | Buffer | te.Tensor], list[te.Tensor]]
"""Inputs of a definition and its results."""


def plain_product(
    x: te.Tensor, layout: WeightLayout, weights: Sequence[te.Tensor], name: str = "sums"
) -> te.Tensor:
    """``sums[i, j] = sum_k x[i, k] W[j, k]``, the channels in their order."""
    k = te.reduce_axis((0, layout.cols), name="k")
    return te.compute(
        (x.shape[0], layout.rows),
        lambda i, j: te.sum(as_f32(x[i, k]) * layout.value(weights, j, k), axis=k),
        name=name,
    )


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """X rounded to a dtype."""
    return te.compute(x.shape, lambda i, j: x[i, j].astype(dtype), name="rounded")


@dataclass(frozen=True)
class Linear(Operator):
    """``y = epilogue(x W^T)``, sums in float32.

    Arguments: x (rows, cols) in_dtype, or words and scales of it where that is PACKED (words alone
    where activations are `Stepped`, halves and powers where they are `ScaledHalves`), or for one
    position those of the prologue that makes it; the tensors of all row splits; the steps of a
    `SteppedOutput`, and those of the matmul that reads its result if it is rounded for that; with
    GELU_GATE also the per-layer inputs (rows, ple_width) f32 and the layer index (int64 scalar,
    last). Results: those of the prologue; (rows, outputs) float32, where outputs is half the
    weight's rows for GELU_PAIRS and all of them otherwise; columns in `suppressed` (epilogues NONE
    and SOFTCAP) are MASKED.
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
        if self.steps_in:
            form = f"stepped_{form}"
        return self.prologue.prefix + self.rows.prefix + form + self.kind

    @property
    def product_name(self) -> str:
        """The name without the prologue's."""
        product = "gemv" if isinstance(self.rows, One) else "gemm"
        form = "stepped_" if self.stepped_out else ""
        form += "int8_" if self.is_int8 else ""
        return f"{form}{product}_{self.layout.label}_{self.epilogue}"

    @property
    def is_int8(self) -> bool:
        """Whether vectors are multiplied as int8."""
        by_step = isinstance(self.activations, Stepped) and self.activations.as_int8
        return by_step or self.is_by_groups

    @property
    def is_by_groups(self) -> bool:
        """Whether they are int8 with a scale a group."""
        return isinstance(self.activations, Int8)

    @property
    def in_halves(self) -> bool:
        """Whether those and the weights are multiplied as float16."""
        return isinstance(self.activations, HalvedInt8 | ScaledHalves)

    @property
    def takes_halved_rows(self) -> bool:
        """Whether x comes as float16 over powers of two (halved_rows.py)."""
        return isinstance(self.activations, ScaledHalves)

    @property
    def by_halves(self) -> bool:
        """Whether floats are multiplied by the weights as float16."""
        return isinstance(self.activations, Halved)

    @property
    def steps_in(self) -> bool:
        """Whether they are whole steps of the checkpoint, by the kernel or by what packs them."""
        return isinstance(self.activations, Stepped)

    @property
    def tiled(self) -> bool:
        """Whether the words of packed rows of x are in tiles."""
        return isinstance(self.activations, Int8) and self.activations.tiled

    @property
    def packed_out(self) -> bool:
        """Whether the result is packed for the matrix that reads it."""
        return isinstance(self.output, PackedOutput) or self.result_form != AS_FLOATS

    @property
    def result_form(self) -> str:
        """The form of a result of whole steps."""
        return self.output.result if isinstance(self.output, SteppedOutput) else AS_FLOATS

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
        return self.is_int8 or self.packed_out

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
        if self.result_form != AS_FLOATS:
            return [words_spec(self.outputs)]
        return (
            quantized_specs(self.outputs) if self.packed_out else [((1, self.outputs), "float32")]
        )

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        exact = None
        if self.stepped_out:
            exact = example_of_matmul(name, self.layout.bits, shape, rng, self.is_plain)
        if exact is not None:
            return exact
        if self._has_small_scales(name):
            return rng.uniform(2.0**-12, 2.0**-11, shape) * rng.choice([-1, 1], shape)
        own = self.prologue.example_input(name, shape, rng)
        return self.layout.example_input(name, shape, rng) if own is None else own

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        exact: tuple[Spread, ...] = ()
        if self.stepped_out:
            exact = spreads_of_matmul(name, self.layout.bits, self.is_plain)
        if exact:
            return exact
        if self._has_small_scales(name):
            return of_both_signs(2.0**-12)
        own = self.prologue.known_spreads(name) or self.layout.known_spreads(name)
        return own or super().known_spreads(name, dtype)

    def tolerance(self, result: str) -> float:
        # The new residual and the router's scores are made in float32.
        own = 0.0 if result in ("out", "routed") else self._vector_error
        halves = self.activations.rounded_operands * HALF_ULP_F16
        if self.epilogue in (Epilogue.GELU_PAIRS.value, Epilogue.GELU_GATE.value):
            halves *= GELU_SLOPE
        return super().tolerance(result) + own + halves

    @property
    def _vector_error(self) -> float:
        """The error of a vector that the kernel makes or rounds."""
        if self.steps_in:
            return 0.0 if self.is_plain else stepped_vector_error(self.cols)
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
        return self.with_product(plain_product)

    def with_product(self, product: Product) -> tirx.PrimFunc:
        """The function of the definition, whose sums `product` makes."""
        inputs, results = self.tensors(product)
        return te_prim_func([*inputs, *results])

    def tensors(self, product: Product) -> Tensors:
        """The definition's inputs, scalars among them, and its results."""
        steps: list[te.Tensor] = []
        if self.stepped_out is not None:
            steps = [te.placeholder((self.stepped_out.step_count,), "float32", name=STEPS)]
        if self.is_plain:
            args, x = self.left(steps)
            return self.multiply(product, args, x, steps)
        assert isinstance(self.rows, One), "only one position has its vector made"
        made = self.prologue.make(self.cols, self.in_dtype)
        x = self.rounded(made, steps)
        return self.multiply(product, made.args, x, steps, made.results)

    def left(
        self, steps: Sequence[te.Tensor], prefix: str = ""
    ) -> tuple[list[te.Tensor], te.Tensor]:
        """The arguments of x where it comes as it is, their names with `prefix`, and x."""
        rows = self.rows.extent()
        if self.in_dtype == PACKED and self.steps_in:
            words = te.placeholder(*words_spec(self.cols, rows), name=f"{prefix}words")
            return [words], steps_of_words(words, steps[0][0], self.interleaved)
        if self.takes_halved_rows:
            halved = halved_placeholders(self.cols, rows)
            return halved, self.vector_of(halved)
        if self.in_dtype == PACKED:
            words, scales = packed_placeholders(self.cols, rows, self.tiled, prefix)
            return [words, scales], self.vector_of([words, scales])
        x = te.placeholder((rows, self.cols), self.in_dtype, name=f"{prefix}x")
        if self.steps_in:
            return [x], rounded_to(x, steps[0][0])
        return [x], self.vector_of([x])

    def vector_of(self, args: Sequence[te.Tensor]) -> te.Tensor:
        """What is multiplied, of the arguments of x where they are of no checkpoint's steps."""
        if self.takes_halved_rows:
            return halved_vectors(args[0], args[1], self.interleaved)
        if self.in_dtype == PACKED:
            return unpack(args[0], args[1], self.interleaved)
        return rounded(args[0]) if self.is_int8 else args[0]

    def rounded(self, made: MadeVector, steps: Sequence[te.Tensor]) -> te.Tensor:
        """A vector as it is multiplied."""
        if self.is_by_groups:
            return rounded(made.x)
        x = cast(made.x, self.in_dtype) if made.is_rounded else made.x
        return rounded_to(x, steps[0][0]) if self.steps_in else x

    def multiply(
        self,
        product: Product,
        args: Sequence[te.Tensor],
        x: te.Tensor,
        steps: Sequence[te.Tensor],
        results: Sequence[te.Tensor] = (),
    ) -> Tensors:
        """Inputs and results of the product of x, which was made from `args`, behind `results`."""
        weights = self.layout.placeholders()
        sums = product(x, self.layout, weights)
        readers: list[te.Tensor] = []
        if self.stepped_out is not None:
            sums = rounded_sums(self.stepped_out, self.is_paired, steps[0], sums)
            if self.stepped_out.reader_steps:
                shape = (self.stepped_out.reader_steps,)
                readers = [te.placeholder(shape, "float32", name=READER_STEPS)]
        epilogue_args, y = self.apply_epilogue(sums)
        stored = self.stored(y, readers)
        own = [*weights, *steps, *readers, *epilogue_args]
        return [*args, *own], [*results, *stored]

    def stored(self, y: te.Tensor, readers: Sequence[te.Tensor]) -> list[te.Tensor]:
        """The tensors that hold the result."""
        match self.output:
            case PackedOutput(interleaved=interleaved, tiled=tiled):
                return pack(y, interleaved, tiled)
            case SteppedOutput(result=result) if readers and result != AS_FLOATS:
                return [step_words(y, readers[0][0], result == INTERLEAVED)]
            case SteppedOutput() if readers:
                return [rounded_to(y, readers[0][0])]
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
