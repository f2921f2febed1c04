"""Leave the types of whole parameter lists out of the messages of argument checks.

TVM gives every check of an argument a text for its error, with the argument's type in full. A
model's parameters are one argument, whose type names every tensor: some 85 KB for each exported
function, a tenth of a library. Which function and which argument it was is said before the type.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

BEGIN, TYPE, END = "ErrorContext(", ", annotation=", ")"
LONGEST = 400  # characters of a text that is kept whole: the type of any tensor


@module_pass(opt_level=0, name="ShortenContexts")
class ShortenContexts:
    """Cut long texts of checks before the type.

    Before: ``"ErrorContext(fn=f, loc=param[1], param=packed_params, annotation=R.Tuple(...))"``.
    After: ``"ErrorContext(fn=f, loc=param[1], param=packed_params)"``. Must run after VMShapeLower,
    which writes them.
    """

    def transform_module(self, mod: tvm.IRModule, _: PassContext) -> tvm.IRModule:
        """Rewrite the graph's functions."""
        result = mod.clone()
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                entries = [(tvm.ir.StringImm, _shortened)]
                result.update_func(var, tvm_ffi.structural_map(func, entries))
        return result


def _shortened(node: tvm.ir.StringImm) -> tvm.ir.StringImm:
    text = str(node.value)
    if not text.startswith(BEGIN) or len(text) <= LONGEST:
        return node
    return tvm.ir.StringImm(text.partition(TYPE)[0] + END)
