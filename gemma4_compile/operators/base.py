"""Operators.

A frozen description with a definition, which defines its meaning and runs on any target.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol, TypeVar, get_type_hints, runtime_checkable

import numpy as np
from tvm import te, tirx
from tvm.relax.frontend import nn
from tvm.tirx.buffer import is_buffer_var

from gemma4_compile.operators.examples import MOVED_BYTES, SUM_F32, Sizes, random_values
from gemma4_compile.operators.rows import Few, Joint, OneOf
from gemma4_compile.operators.spreads import Spread, spreads_of
from gemma4_compile.operators.types import Index
from gemma4_compile.types import Array

T = TypeVar("T")


@runtime_checkable
class _Described(Protocol):
    """A dataclass with several forms."""

    @classmethod
    def from_description(cls, values: Mapping[str, object]) -> type: ...


OPERATOR_ATTR = "gemma4.operator"
_OPAQUE = 8  # relax.op.pattern.kOpaque: graph fusion must leave the function alone
_KINDS: dict[str, type[Operator]] = {}

TensorSpec = tuple[tuple[Index, ...], str]  # shape (ints or tirx expressions) and dtype


@dataclass(frozen=True)
class Operator(ABC):
    """One kernel's meaning.

    Subclasses are frozen dataclasses whose fields are plain ints, floats, strings, None, tuples of
    those and dataclasses of those: the fields travel as JSON on the PrimFunc, and a target's
    schedule rule finds its kernel by them. ``rows`` is the number of token positions; None means
    the symbolic prefill length.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" not in cls.__dict__:
            return  # a form that others share; its parent's descriptions stay its parent's
        taken = _KINDS.setdefault(cls.kind, cls)
        if taken is not cls:
            raise TypeError(
                f"{cls.__qualname__}: the kind {cls.kind!r} is {taken.__qualname__}'s already; "
                "an operator is found by its kind: give it one of its own"
            )

    @property
    def name(self) -> str:
        """Name of the kernel; operators that differ may share it, the module makes it unique."""
        return self.kind

    @property
    def variant(self) -> str:
        """The kind, with what rows and parts say in front: by it kernels are counted and tuned."""
        return self.kind

    @abstractmethod
    def definition(self) -> tirx.PrimFunc:
        """The definition as an unscheduled PrimFunc.

        Inputs, then in-place arguments, then outputs.
        """

    @property
    def goes_on(self) -> bool:
        """Whether its results are the last arguments, in place: it goes on from another's."""
        return False

    @property
    def maker(self) -> Operator | None:
        """The operator that makes this one's first arguments, in place, where they must fit."""
        return None

    def example_input(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, sizes: Sizes
    ) -> Array | None:
        """Values of an argument for which random numbers of its dtype would not do, or None."""
        return None

    def example_scalar(self, sizes: Sizes) -> int:
        """The scalar: the layer whose per-layer inputs are read."""
        del sizes
        return 3

    def example_inputs(self, rng: np.random.Generator, sizes: Sizes) -> tuple[Array | int, ...]:
        """Inputs, in-place arguments and outputs of the definition, in its order."""
        args: list[Array | int] = []
        rows = vars(self).get("rows")
        if isinstance(rows, Few | Joint | OneOf):
            sizes = replace(sizes, rows=rows.count(sizes.rows))
        for param in self.prim_func().params:
            if not is_buffer_var(param):
                args.append(self.example_scalar(sizes))
                continue
            shape, dtype = tuple(sizes.of(size) for size in param.shape), str(param.dtype)
            own = self.example_input(param.name, shape, rng, sizes)
            values = random_values(param.name, shape, dtype, rng) if own is None else own
            args.append(values.astype(dtype))
        return tuple(args)

    def known_spreads(self, name: str, dtype: str) -> tuple[Spread, ...]:
        """Values of an argument in the self-test on a user's device, of its elements in turn.

        Results have some, too: what must be overwritten.
        """
        return spreads_of(name, dtype)

    def known_data(self, name: str, shape: tuple[int, ...], sizes: Sizes) -> Array | None:
        """All values of an argument in that self-test, where spreads would not do, or None."""
        return None

    def tolerance(self, result: str) -> float:
        """Return how far two right kernels may differ, relative to the largest value.

        0: not at all, also where a result is float16 and its last bit could be rounded.
        """
        return SUM_F32

    @property
    def packs(self) -> bool:
        """Return whether results of words are int8 values, which may be a unit off."""
        return False

    def moved_share(self) -> float:
        """The share of packed values that may be one unit off."""
        return MOVED_BYTES

    def prim_func(self) -> tirx.PrimFunc:
        """The definition, marked with this description."""
        return _marked(self)


@lru_cache(maxsize=1024)
def _marked(operator: Operator) -> tirx.PrimFunc:
    description = json.dumps({"kind": operator.kind, **asdict(operator)}, sort_keys=True)
    return (
        operator.definition()
        .without_attr("global_symbol")
        .with_attrs({OPERATOR_ATTR: description, "op_pattern": _OPAQUE, "tirx.noalias": True})
    )


def _from_json(kind: type[T], values: Mapping[str, object]) -> T:
    """A dataclass from the JSON object of its fields: lists are tuples, objects dataclasses.

    One of several forms says by `from_description` which of its subclasses the fields are of.
    """
    kind = kind.from_description(values) if isinstance(kind, _Described) else kind
    types = get_type_hints(kind)
    made = {
        key: _from_json(types[key], value) if isinstance(value, dict) else _tuples(value)
        for key, value in values.items()
    }
    for key, value in made.items():
        if isinstance(types[key], _Described) and not isinstance(value, types[key]):
            raise KeyError(key)  # an earlier version had a number there
    return kind(**made)


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def operator_of(func: tirx.PrimFunc) -> Operator | None:
    """The description that `func` was made from, or None for any other function."""
    description = description_of(func)
    return None if description is None else operator_from(description)


def description_of(func: tirx.PrimFunc) -> str | None:
    """The JSON text on a function that an operator made, or None for any other function."""
    return str(func.attrs[OPERATOR_ATTR]) if OPERATOR_ATTR in func.attrs else None


@lru_cache(maxsize=1024)
def operator_from(description: str) -> Operator:
    """The operator that `description_of` describes; KeyError for an unknown kind or form."""
    fields = json.loads(description)
    return _from_json(_KINDS[fields.pop("kind")], fields)


def symbolic_rows(rows: int | None, name: str = "n") -> Index:
    """`rows`, or the symbolic prefill length when it is None."""
    return tirx.Var(name, "int64") if rows is None else rows


def te_prim_func(args: Sequence[te.Tensor | tirx.Var]) -> tirx.PrimFunc:
    """A PrimFunc with the given inputs and outputs, in this order."""
    return te.create_prim_func(list(args))


def placeholder(shape: tuple[Index, ...], dtype: str) -> nn.Tensor:
    """An output tensor's shape and dtype for `emit`."""
    return nn.Tensor.placeholder(shape, dtype)


def emit(
    operator: Operator, args: Sequence[nn.Tensor | tirx.Var], outputs: Sequence[TensorSpec]
) -> tuple[nn.Tensor, ...]:
    """Call the operator inside the model; one new tensor for each of `outputs`."""
    out = [placeholder(shape, dtype) for shape, dtype in outputs]
    result = nn.op.tensor_ir_op(
        operator.prim_func(), operator.name, list(args), out if len(out) > 1 else out[0]
    )
    return tuple(result) if len(out) > 1 else (result,)


def emit_inplace(
    operator: Operator,
    args: Sequence[nn.Tensor | tirx.Var],
    inplace: Sequence[int],
    outputs: Sequence[TensorSpec],
) -> tuple[nn.Tensor, ...]:
    """Call the operator; result i overwrites argument ``inplace[i]`` or, at -1, is new."""
    out = [placeholder(shape, dtype) for shape, dtype in outputs]
    single = len(out) == 1
    result = nn.op.tensor_ir_inplace_op(
        operator.prim_func(),
        operator.name,
        list(args),
        list(inplace),
        out[0] if single else out,
    )
    return (result,) if single else tuple(result)
