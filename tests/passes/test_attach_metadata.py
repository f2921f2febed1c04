"""The metadata function returns the text it was given, and nothing else changes."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from gemma4_compile import abi
from gemma4_compile.passes.attach_metadata import AttachMetadata


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return x


def attached(text: str) -> tvm.IRModule:
    return tvm.transform.Sequential([AttachMetadata(text)])(Before)


def test_metadata_is_added_and_the_rest_stays() -> None:
    after = attached('{"a": 1}')
    before: tvm.IRModule = Before
    tvm.ir.assert_structural_equal(after["main"], before["main"])
    assert {var.name_hint for var in after.get_global_vars()} == {"main", abi.METADATA}


def test_metadata_function_returns_the_text() -> None:
    text = '{"umlaut": "ü", "quote": "\\""}'
    executable = relax.build(attached(text), target="llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    assert str(machine[abi.METADATA]()) == text
