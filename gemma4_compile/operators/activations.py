"""Activations of a matmul: what its vectors are multiplied as, and the form of its result.

The base classes are those of floats. The rounding to int8: activation_quantization.py, by groups,
and static_rounding.py, by the steps of a checkpoint. Definitions multiply the rounded vector in
float32; kernels sum products of integers, within a group or over a row, exactly; those of
`HalvedInt8` round both operands to float16 instead, those of `Halved` the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

PACKED = "int8"  # in place of the dtype of a vector that comes packed
AS_FLOATS, IN_ORDER, INTERLEAVED = "floats", "in_order", "interleaved"
"""A result of whole steps: as float32, or as words for a matmul on integers (`byte_of`)."""


@dataclass(frozen=True)
class Activations:
    """Floats: in the dtype of x.

    Attributes
    ----------
    rounded_operands : of a product's two, those that kernels alone round to float16
    """

    rounded_operands: ClassVar[int] = 0

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type[Activations]:
        """Return the class of activations from their fields."""
        kinds = (*cls.__subclasses__(), *Int8.__subclasses__())
        forms = {vars(one)["form"]: one for one in kinds}
        return forms.get(values.get("form"), cls)


@dataclass(frozen=True)
class Halved(Activations):
    """Floats whose kernel multiplies them in their own type by the weights as float16."""

    rounded_operands: ClassVar[int] = 1
    form: str = "by_float16"


@dataclass(frozen=True)
class Int8(Activations):
    """Groups rounded to int8: x is packed, or rounded by the kernel.

    Attributes
    ----------
    tiled : the words of a few packed rows are in tiles
    """

    tiled: bool = False
    form: str = "int8"


@dataclass(frozen=True)
class HalvedInt8(Int8):
    """Packed groups of int8 whose kernel multiplies them, and the weights, as float16."""

    rounded_operands: ClassVar[int] = 2
    form: str = "int8_as_float16"


@dataclass(frozen=True)
class ScaledHalves(Int8):
    """Those groups as float16 over a power of two a row (halved_rows.py), which x comes as."""

    rounded_operands: ClassVar[int] = 1
    form: str = "scaled_float16"


@dataclass(frozen=True)
class Stepped(Activations):
    """Rounded to the first step of a `SteppedOutput`: by the kernel, or x is packed.

    Attributes
    ----------
    as_int8 : multiplied as integers, which then are int8; the step is no 0
    """

    as_int8: bool = False
    form: str = "stepped"


@dataclass(frozen=True)
class Output:
    """Floats: (rows, outputs) float32."""

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type[Output]:
        """Return the class of an output from its fields."""
        forms = {vars(one)["form"]: one for one in cls.__subclasses__()}
        return forms.get(values.get("form"), cls)


@dataclass(frozen=True)
class PackedOutput(Output):
    """Words and scales, for the matrix that reads them.

    Attributes
    ----------
    interleaved : that matrix has 4-bit weights
    tiled : the words are in tiles
    """

    interleaved: bool = False
    tiled: bool = False
    form: str = "packed"


@dataclass(frozen=True)
class SteppedOutput(Output):
    """Floats, each sum rounded to a step before the epilogue (static_rounding.py).

    Attributes
    ----------
    sections : rows of the weight that share a step, in order; of gate and up, whose rows come by
        turns, those of each
    has_input_step : the first step, that of the inputs, is known to be no 0
    reader_steps : of the one matmul that reads the result, which is rounded for it; 0 where it is
        not
    result : the form of the result
    """

    sections: tuple[int, ...] = ()
    has_input_step: bool = False
    reader_steps: int = 0
    result: str = AS_FLOATS
    form: str = "stepped"

    @property
    def step_count(self) -> int:
        """Steps of inputs and of outputs."""
        return 2 * len(self.sections)


def packed_of(output: Output) -> PackedOutput:
    """The form of a packed output, where it is one."""
    assert isinstance(output, PackedOutput), "chosen for packed results"
    return output


FLOATS, HALVED = Activations(), Halved()
INT8, HALVED_INT8, SCALED_HALVES = Int8(), HalvedInt8(), ScaledHalves()
STEPPED, STEPPED_INT8 = Stepped(), Stepped(as_int8=True)
FLOAT32 = Output()
