"""`prefill`: an encoder in the form of the stock client's pipeline of embeddings.

The client gives all texts of a call in one padded matrix, as many as the library's metadata say,
and memory is planned for the rows of the longest text. So a call reads as many texts at a time as
have no more rows, by functions that call each other: the sizes are known when they are called.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax, tirx

from gemma4_compile import abi
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.operators.base import Operator, TensorSpec
from gemma4_compile.operators.padded_texts import AROUND, FirstRows, PackedTexts

_GROUP, _GROUPS, _ALL = "prefill_group", "prefill_groups", "prefill_texts"


def add_prefill(module: tvm.IRModule, config: Gemma4Config, most_rows: int) -> tvm.IRModule:
    """The module with `prefill`, which calls its `embed_texts`.

    ``prefill(ids, mask, weights)`` takes (texts, length) int32, the mask 1 for a text's tokens,
    which come first, and 0 after. It returns (texts, length, embedding_dim) float32, the embeddings
    in the first rows, zero else.

    Parameters
    ----------
    most_rows : of a call of `embed_texts`; those of the longest text at least
    """
    return _Padded(module, config, most_rows).module()


class _Padded:
    """Writes `prefill` and what it calls.

    Each of these takes ids, mask, a number and the weights, and returns the vectors of the first
    so many texts, or of a group, which is the last of them. They are exported, since TVM leaves
    parameters out of what is not.
    """

    def __init__(self, module: tvm.IRModule, config: Gemma4Config, most_rows: int) -> None:
        assert config.embedding is not None, "only an encoder has vectors of texts"
        self.builder = relax.BlockBuilder(module)
        self.embed = module.get_global_var(abi.EMBED_TEXTS)
        self.weights = module[self.embed].params[-1].ty
        self.pack = PackedTexts(config.bos_token_id, config.eos_token_id[0])
        self.width = config.embedding.dim
        self.texts, self.length, self.number = (
            tirx.Var(name, "int64") for name in ("texts", "length", "number")
        )
        self.most = tirx.max(tirx.floordiv(most_rows, self.length + AROUND), 1)
        self.count = tirx.min(self.number, self.most)  # texts of a group

    def module(self) -> tvm.IRModule:
        """The module with all of them."""
        every, builder = tvm.ir.GlobalVar(_ALL), self.builder
        vectors = relax.TensorType((self.number, self.width), "float32")
        types = [param.ty for param in self._params()]
        relax.expr._update_type(every, relax.FuncType(types, vectors))
        group = self._group()
        function = self._every(vectors, group, self._groups(group, every))
        ids, mask, _, weights = self._params()
        with builder.function(abi.EMBED_PADDED, [ids, mask, weights]):
            with builder.dataflow():
                whole = relax.ShapeExpr([self.texts])
                found = builder.emit(relax.Call(every, [ids, mask, whole, weights]))
                shape = (self.texts, self.length, self.width)
                rows = self._kernel(FirstRows(self.width), [found], [(shape, "float32")])
                out = builder.emit_output(rows)
            builder.emit_func_output(out)
        result = builder.get()
        result[every] = function
        return result

    def _params(self) -> list[relax.Var]:
        batch = relax.TensorType((self.texts, self.length), "int32")
        types = [batch, batch, relax.ShapeType([self.number]), self.weights]
        names = ("ids", "mask", "number", "packed_params")
        return [relax.Var(name, one) for name, one in zip(names, types, strict=True)]

    def _kernel(
        self, operator: Operator, args: Sequence[relax.Expr], out: Sequence[TensorSpec]
    ) -> relax.Var:
        kernel = self.builder.add_func(operator.prim_func(), operator.name)
        types = [relax.TensorType(*one) for one in out]
        return self.builder.emit(relax.call_tir(kernel, list(args), types))

    def _group(self) -> tvm.ir.GlobalVar:
        """As many of the last texts as one call has rows for."""
        builder, rows = self.builder, self.count * (self.length + AROUND)
        ids, mask, _, weights = params = self._params()
        with builder.function(_GROUP, params):
            with builder.dataflow():
                outs = [((rows,), "int32"), ((rows, 2), "int32"), ((self.count, 2), "int32")]
                packed = self._kernel(self.pack, [ids, mask, self.number - self.count], outs)
                parts = [builder.emit(relax.TupleGetItem(packed, index)) for index in range(3)]
                out = builder.emit_output(relax.Call(self.embed, [*parts, weights]))
            return builder.emit_func_output(out)

    def _groups(self, group: tvm.ir.GlobalVar, every: tvm.ir.GlobalVar) -> tvm.ir.GlobalVar:
        """A group behind all before it."""
        builder = self.builder
        ids, mask, _, weights = params = self._params()
        with builder.function(_GROUPS, params):
            with builder.dataflow():
                before = relax.ShapeExpr([self.number - self.count])
                others = builder.emit(relax.Call(every, [ids, mask, before, weights]))
                last = builder.emit(relax.Call(group, params))
                out = builder.emit_output(relax.op.concat([others, last], axis=0))
            return builder.emit_func_output(out)

    def _every(
        self, vectors: relax.TensorType, group: tvm.ir.GlobalVar, groups: tvm.ir.GlobalVar
    ) -> relax.Function:
        """All vectors: of one group, where that is all of them."""
        params, normalize = self._params(), self.builder.normalize
        calls = [normalize(relax.Call(one, params)) for one in (group, groups)]
        is_one = relax.prim_value(self.number <= self.most)
        value = normalize(relax.If(is_one, *(relax.SeqExpr([], call) for call in calls)))
        found, result = relax.Var("found", value.ty), relax.Var("vectors", vectors)
        bindings = [relax.VarBinding(found, value), relax.MatchCast(result, found, vectors)]
        body = normalize(relax.SeqExpr([relax.BindingBlock(bindings)], result))
        return relax.Function(params, body, vectors).with_attr("global_symbol", _ALL)
