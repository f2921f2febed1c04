"""An exported function as a list of operator calls, for passes that replace some of them.

The model's functions consist of one dataflow block. A call of an operator (a PrimFunc with a
description, see operators/base.py) becomes an `OperatorCall`; every other binding stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeGuard, TypeVar

import tvm
from tvm import relax, tirx

from gemma4_compile.model_spec.component import FEW_ROWS_ATTR
from gemma4_compile.operators.base import Operator, TensorSpec, description_of, operator_of

_CALL_TIR = "relax.call_tir"
_IN_PLACE = "relax.call_tir_inplace"
Op = TypeVar("Op", bound=Operator)
OpT_co = TypeVar("OpT_co", bound=Operator, covariant=True)


@dataclass(eq=False)
class OperatorCall(Generic[OpT_co]):
    """One launch.

    Attributes
    ----------
    operator : the description
    args : without the results, in the definition's order; scalars are the last of them
    results : the variables that hold the results, in the definition's order
    inplace : for each result the argument that it overwrites; empty where all are new. Of calls
        that overwrite, only those of operators that go on (`Operator.goes_on`) are found as such.
    """

    operator: OpT_co
    args: list[relax.Expr]
    results: list[relax.Var]
    inplace: tuple[int, ...] = ()


@dataclass(eq=False)
class Other:
    """A variable and its value, which is no call of an operator; built-in operators come normal."""

    binding: relax.Binding


@dataclass(eq=False)
class BuiltIn(Other):
    """A call of one of Relax's own operators, ``relax.add``."""

    name: str

    @property
    def args(self) -> list[relax.Expr]:
        """What it is called with."""
        return list(self.binding.value.args)

    @property
    def results(self) -> list[relax.Var]:
        """The variable."""
        return [self.binding.var]


AnyCall = OperatorCall[Operator]
Call = AnyCall | BuiltIn
Step = AnyCall | Other


class OperatorGraph:
    """The calls of one exported function, in the order of their launches.

    Parameters
    ----------
    module : holds the function and the PrimFuncs that it calls
    name : of the function

    Attributes
    ----------
    few_rows : the most rows that the function is called with, None where they may be many
    """

    def __init__(self, module: tvm.IRModule, name: str) -> None:
        self._function = module[name]
        attrs = self._function.attrs or {}
        self.few_rows = int(attrs[FEW_ROWS_ATTR]) if FEW_ROWS_ATTR in attrs else None
        self.steps: list[Step] = list(_steps(module, self._function))
        self._producers: dict[relax.Var, Call] = {
            result: step
            for step in self.steps
            if isinstance(step, OperatorCall | BuiltIn)
            for result in step.results
        }
        self._readers = Counter(var for step in self.steps for var in _reads(step))
        self._readers.update(_variables(self._function.body.body))

    def calls(self, kind: type[Op]) -> list[OperatorCall[Op]]:
        """Calls of exactly this class of operators, in order."""
        return [step for step in self.steps if _is_exactly(step, kind)]

    def producer(self, tensor: relax.Expr) -> AnyCall | None:
        """The call that makes a tensor, or None for parameters and results of anything else."""
        step = self._producers.get(tensor) if isinstance(tensor, relax.Var) else None
        return step if isinstance(step, OperatorCall) else None

    def only_producer(self, tensor: relax.Expr, kind: type[Op]) -> OperatorCall[Op] | None:
        """The call of an operator of this class that makes a tensor which is read once."""
        step = self.producer(tensor)
        return step if is_call_of(step, kind) and self._readers[tensor] == 1 else None

    def built_in(self, tensor: relax.Expr, name: str) -> BuiltIn | None:
        """The call of a built-in operator that makes a tensor, if one of this name does."""
        step = self._producers.get(tensor) if isinstance(tensor, relax.Var) else None
        return step if isinstance(step, BuiltIn) and step.name == name else None

    def calls_of_built_in(self, name: str) -> list[BuiltIn]:
        """Calls of a built-in operator, in order."""
        return [step for step in self.steps if isinstance(step, BuiltIn) and step.name == name]

    def reader_count(self, tensor: relax.Var) -> int:
        """Return how often a tensor is read, by the function's result, too."""
        return self._readers[tensor]

    def only_reader(self, tensor: relax.Var) -> AnyCall | None:
        """The call that reads a tensor once, if nothing else reads it."""
        if self._readers[tensor] != 1:
            return None
        calls = (step for step in self.steps if isinstance(step, OperatorCall))
        return next((call for call in calls if tensor in _reads(call)), None)

    def is_read_between(self, tensor: relax.Var, first: Call, last: Call) -> bool:
        """Return whether a step between two calls reads a tensor."""
        begin, end = self.steps.index(first) + 1, self.steps.index(last)
        return any(tensor in _reads(step) for step in self.steps[begin:end])

    def replace(self, olds: Sequence[Call], news: Sequence[Step]) -> None:
        """Put `news` in the place of the last of `olds`, and take the others out."""
        at = self.steps.index(olds[-1])
        self.steps[at : at + 1] = news
        for old in olds[:-1]:
            self.steps.remove(old)
        for old in olds:
            self._readers.subtract(_reads(old))
            for result in old.results:
                del self._producers[result]
        for new in news:
            self._readers.update(_reads(new))
            if isinstance(new, OperatorCall | BuiltIn):
                self._producers.update(dict.fromkeys(new.results, new))

    def write(
        self, builder: relax.BlockBuilder, functions: dict[Operator, tvm.ir.GlobalVar]
    ) -> relax.Function:
        """The function as it is now.

        `builder` gets the PrimFuncs that it calls and has not yet, which `functions` holds.
        """
        bindings: list[relax.Binding] = []
        for step in self.steps:
            if isinstance(step, OperatorCall):
                if step.operator not in functions:
                    added = builder.add_func(step.operator.prim_func(), step.operator.name)
                    functions[step.operator] = added
                bindings += _bindings(step, functions[step.operator], builder)
            else:
                bindings.append(step.binding)
        function = self._function
        body = builder.normalize(relax.SeqExpr([relax.DataflowBlock(bindings)], function.body.body))
        return relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs
        )


def _is_exactly(step: Step, kind: type[Op]) -> TypeGuard[OperatorCall[Op]]:
    return isinstance(step, OperatorCall) and type(step.operator) is kind


def is_call_of(step: Step | None, kind: type[Op]) -> TypeGuard[OperatorCall[Op]]:
    """Return whether a step calls an operator of a class or of one derived from it."""
    return isinstance(step, OperatorCall) and isinstance(step.operator, kind)


def result_vars(name: str, specs: Sequence[TensorSpec]) -> list[relax.Var]:
    """New variables for results."""
    return [relax.DataflowVar(name, relax.TensorType(list(shape), dtype)) for shape, dtype in specs]


def rewrite(module: tvm.IRModule, change: Callable[[OperatorGraph], None]) -> tvm.IRModule:
    """The module with `change` made in all of its functions.

    Operators that nothing calls any more are no longer in it.
    """
    graphs = {
        var: OperatorGraph(module, var.name_hint)
        for var, func in module.functions_items()
        if isinstance(func, relax.Function) and _is_dataflow(func)
    }
    kept: set[tvm.ir.GlobalVar] = set()
    for graph in graphs.values():
        change(graph)
        for step in graph.steps:
            if isinstance(step, Other):
                kept.update(_called(step.binding.value))
    others = {
        var: func
        for var, func in module.functions_items()
        if var in kept or (var not in graphs and not _is_operator(func))
    }
    builder = relax.BlockBuilder(tvm.IRModule(others, attrs=module.attrs))
    added: dict[Operator, tvm.ir.GlobalVar] = {}
    functions = {var: graph.write(builder, added) for var, graph in graphs.items()}
    result = builder.get()
    for var, func in functions.items():
        result[var] = func
    return result


def _is_dataflow(function: relax.Function) -> bool:
    blocks = list(function.body.blocks) if isinstance(function.body, relax.SeqExpr) else []
    return len(blocks) == 1 and isinstance(blocks[0], relax.DataflowBlock)


def _is_operator(func: tvm.ir.BaseFunc) -> bool:
    return isinstance(func, tirx.PrimFunc) and description_of(func) is not None


def _called(value: relax.Expr) -> list[tvm.ir.GlobalVar]:
    return [node for node in _leaves(value) if isinstance(node, tvm.ir.GlobalVar)]


def _steps(module: tvm.IRModule, function: relax.Function) -> Iterator[Step]:
    """The steps of a function; how a call's tuple is taken apart belongs to the call."""
    operators: dict[str, Operator | None] = {}
    tuples: dict[relax.Var, AnyCall] = {}
    for binding in function.body.blocks[0].bindings:
        value: relax.Expr | None = binding.value if isinstance(binding, relax.VarBinding) else None
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in tuples:
            tuples[value.tuple_value].results[value.index] = binding.var
            continue
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            yield Other(binding)
            continue
        if value.op.name not in (_CALL_TIR, _IN_PLACE):
            yield BuiltIn(binding, value.op.name)
            continue
        name = value.args[0].name_hint
        if name not in operators:
            operators[name] = operator_of(module[name])
        operator = operators[name]
        inplace: tuple[int, ...] = ()
        if value.op.name == _IN_PLACE:
            if operator is None or not operator.goes_on:
                yield BuiltIn(binding, value.op.name)
                continue
            inplace = tuple(map(int, value.attrs.inplace_indices))
        if operator is None:
            yield Other(binding)
            continue
        call = OperatorCall(operator, list(value.args[1].fields), [binding.var], inplace)
        types = value.ty_args[0]
        if isinstance(types, relax.TupleType):
            call.results = [relax.DataflowVar("unread", item) for item in types.fields]
            tuples[binding.var] = call
        yield call


def _bindings(
    call: AnyCall, function: tvm.ir.GlobalVar, builder: relax.BlockBuilder
) -> Iterator[relax.Binding]:
    types = [result.ty for result in call.results]
    single = len(types) == 1
    out = types[0] if single else relax.TupleType(types)
    args = relax.Tuple(call.args)
    value = relax.Call(tvm.ir.Op.get(_CALL_TIR), [function, args], None, [out])
    if call.inplace:
        value = relax.op.call_tir_inplace(function, args, list(call.inplace), types)
    if single:
        yield relax.VarBinding(call.results[0], builder.normalize(value))
        return
    normal = builder.normalize(value)
    whole = relax.DataflowVar(call.operator.name, normal.ty)
    yield relax.VarBinding(whole, normal)
    for index, result in enumerate(call.results):
        item = builder.normalize(relax.TupleGetItem(whole, index))
        yield relax.VarBinding(result, item)


def _reads(step: Step) -> list[relax.Var]:
    if isinstance(step, OperatorCall):
        return [item for item in step.args if isinstance(item, relax.Var)]
    return _variables(step.binding.value)


def _variables(value: relax.Expr) -> list[relax.Var]:
    return [node for node in _leaves(value) if isinstance(node, relax.Var)]


def _leaves(value: relax.Expr) -> Iterator[relax.Expr]:
    """The variables and functions of a value in normal form.

    TVM's own visitor goes into the types as well: for each weight into those of all of them.
    """
    if isinstance(value, relax.Call):
        yield from (leaf for item in (value.op, *value.args) for leaf in _leaves(item))
    elif isinstance(value, relax.Tuple):
        yield from (leaf for item in value.fields for leaf in _leaves(item))
    elif isinstance(value, relax.TupleGetItem):
        yield from _leaves(value.tuple_value)
    elif isinstance(value, relax.Var | tvm.ir.GlobalVar):
        yield value
    elif isinstance(value, relax.If | relax.Function | relax.SeqExpr):
        raise AssertionError(f"a {type(value).__name__} in a dataflow block")
