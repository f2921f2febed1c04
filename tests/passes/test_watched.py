"""Every pass that runs in the block is seen with what it made, groups of passes are not."""

import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

from gemma4_compile.passes.fuse import FUSIONS, fuse
from gemma4_compile.passes.watched import watched
from gemma4_compile.targets import target_spec


@I.ir_module
class Doubled:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y


PASSES = tvm.transform.Sequential([relax.transform.LegalizeOps(), relax.transform.ToNonDataflow()])


def kernels(module: tvm.IRModule) -> int:
    return sum(isinstance(func, tirx.PrimFunc) for _, func in module.functions_items())


def test_passes_are_seen_in_their_order_with_what_they_made() -> None:
    seen: list[tuple[str, int]] = []
    with watched(lambda name, module: seen.append((name, kernels(module)))):
        PASSES(Doubled)
    assert seen == [("LegalizeOps", 1), ("ToNonDataflow", 1)]
    PASSES(Doubled)
    with watched(None):
        PASSES(Doubled)
    assert len(seen) == 2


def test_fusions_are_seen_and_what_they_make_is_the_same() -> None:
    seen: list[tuple[str, tvm.IRModule]] = []
    spec = target_spec("cpu")
    fused = fuse(Doubled, spec, lambda name, module: seen.append((name, module)))
    assert [name for name, _ in seen] == [fusion.__name__ for fusion in FUSIONS]
    tvm.ir.assert_structural_equal(seen[-1][1], fused)
    tvm.ir.assert_structural_equal(fuse(Doubled, spec), fused)
