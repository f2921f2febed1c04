"""Checks of arguments: the types of parameter lists are left out of their texts."""

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from gemma4_compile.passes.shorten_contexts import LONGEST, ShortenContexts

P = R.Tensor((4, 128), "float32")


@I.ir_module
class Model:
    @R.function
    def decode(
        x: R.Tensor((4,), "float32"), params: R.Tuple(P, P, P, P, P, P, P, P, P, P)
    ) -> R.Tensor((4,), "float32"):
        R.func_attr({"relax.force_pure": True})
        return x


def test_types_of_parameter_lists_are_left_out_and_no_others() -> None:
    checked = relax.transform.VMShapeLower()(Model)
    assert max(map(len, texts(checked))) > LONGEST

    shortened = tvm.transform.Sequential([ShortenContexts()])(checked)

    assert texts(shortened) == {
        "ErrorContext(fn=decode, loc=param[0], param=x, "
        'annotation=R.Tensor((4,), dtype="float32")) ',
        "ErrorContext(fn=decode, loc=param[1], param=params)",
    }
    assert len(calls(shortened)) == len(calls(checked)), "every check is still there"


def calls(module: tvm.IRModule) -> list[tvm.ir.Call]:
    found: list[tvm.ir.Call] = []
    relax.analysis.post_order_visit(
        module["decode"].body,
        lambda node: found.append(node) if isinstance(node, tvm.ir.Call) else None,
    )
    return found


def texts(module: tvm.IRModule) -> set[str]:
    contexts = [arg for call in calls(module) for arg in call.args]
    return {str(arg.value) for arg in contexts if isinstance(arg, tvm.ir.StringImm)}
