"""Where kernels for CUDA let the next one begin, and wait for the one before them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemma4_compile.errors import TargetError
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.divided_attention import DividedAttention
from gemma4_compile.operators.rows import CHUNK
from gemma4_compile.targets.cuda_programmatic import begin_early

HEAD = 'extern "C" __global__ void __launch_bounds__(64, 1) '
PARAMETERS = (
    "half* __restrict__ q_scale0_ptr, uint* __restrict__ q_weight0_ptr, float* y_ptr, int n"
)


def kernel(name: str, *statements: str) -> str:
    lines = [f"{HEAD}{name}({PARAMETERS}) {{", *(f"  {one}" for one in statements), "}", ""]
    return "\n".join([f"{HEAD}{name}({PARAMETERS});", *lines])


def body_of(text: str) -> list[str]:
    """The statements; in place of each guarded call its instruction."""
    lines = text.split("\n")[2:-2]
    assert lines.count("#if defined(__CUDA_ARCH_FEAT_SM90_ALL)") == lines.count("#endif")
    kept = (line.strip() for line in lines if not line.startswith(("#", "  __builtin_assume")))
    return [line.split('"')[1].rstrip(";") if line.startswith("asm") else line for line in kept]


BEGIN, WAIT = "griddepcontrol.launch_dependents", "griddepcontrol.wait"


def test_weights_are_asked_for_before_the_wait() -> None:
    statements = "uint v = q_weight0_ptr[0];", "float s = q_scale0_ptr[0];", "y_ptr[0] = s * v;"
    found = body_of(begin_early(kernel("int8_gemv_kernel", *statements)))
    assert found == [BEGIN, *statements[:2], WAIT, statements[2]]


def test_what_is_no_weight_is_taken_from_the_wait() -> None:
    text = begin_early(kernel("int8_gemv_kernel", "y_ptr[0] = q_weight0_ptr[0];"))
    assert f'"{WAIT};" : "+l"(y_ptr) : : "memory"' in text


@pytest.mark.parametrize(
    ("name", "blocks", "is_early"),
    [("int8_gemv_kernel", 2, True), ("int8_gemv_kernel", 1, False), ("few_row_kernel", 2, False)],
)
def test_weights_of_bounded_kernels_are_no_constants(
    name: str, blocks: int, is_early: bool
) -> None:
    """Whose loads may move behind the wait; all pointers are known as those of global memory."""
    statement = kernel(name, "y_ptr[0] = q_weight0_ptr[0];").replace("(64, 1)", f"(64, {blocks})")
    text = begin_early(statement)
    weights = ["q_scale0_ptr", "q_weight0_ptr"] if is_early else []
    taken = ", ".join(f'"+l"({weight})' for weight in weights)
    assert f'"{BEGIN};" : {taken} : : "memory"' in text
    assumed = [line for line in text.split("\n") if "__builtin_assume" in line]
    assert assumed == [f"  __builtin_assume(__isGlobal({one}));" for one in (*weights, "y_ptr")]


@pytest.mark.parametrize(
    ("around", "is_within"),
    [
        ("for (int v = 0; v < 3; ++v) {", True),
        ("for (int v = 0; v < n; ++v) {", False),  # of no round
        ("if (n < 3) {", False),
        ("{", False),
    ],
)
def test_every_thread_waits_before_the_first_access(around: str, is_within: bool) -> None:
    loop = [around, "  int w = q_weight0_ptr[0];", "  y_ptr[0] = w;", "}"]
    found = body_of(begin_early(kernel("few_row_kernel", "int a = 1;", *loop)))
    stripped = [line.strip() for line in loop]
    ahead = stripped[:2] if is_within else []
    rest = stripped[len(ahead) :]
    assert found == [BEGIN, "int a = 1;", *ahead, WAIT, *rest]


def test_a_loop_over_weights_alone_is_left_behind() -> None:
    loop = ["for (int v = 0; v < 3; ++v) {", "  int w = q_weight0_ptr[v];", "}"]
    found = body_of(begin_early(kernel("few_row_kernel", *loop, "y_ptr[0] = 1;")))
    assert found == [BEGIN, *(line.strip() for line in loop), WAIT, "y_ptr[0] = 1;"]


@pytest.mark.parametrize("statement", ["return;", "if (n == 0) { return; }"])
def test_no_kernel_ends_without_a_wait(statement: str) -> None:
    found = body_of(begin_early(kernel("few_row_kernel", statement, "y_ptr[0] = 1;")))
    assert found == [BEGIN, WAIT, statement, "y_ptr[0] = 1;"]
    assert body_of(begin_early(kernel("nothing_kernel", "int a = 1;")))[-1] == WAIT


@pytest.mark.parametrize("past", ["break;", "continue;"])
def test_no_thread_leaves_a_loop_without_a_wait(past: str) -> None:
    loop = ["for (int v = 0; v < 3; ++v) {", f"  if (n == v) {{ {past} }}", "  y_ptr[v] = 1;", "}"]
    found = body_of(begin_early(kernel("few_row_kernel", *loop)))
    stripped = [line.strip() for line in loop]
    assert found == [BEGIN, stripped[0], WAIT, *stripped[1:]]


ATTENTION = PrefillAttention(CHUNK, 8, 1, 512, None, "float16", None, rounds_to_halves=True)


@pytest.mark.parametrize(
    "name",
    [
        "int8_gemm_q4_none",
        ATTENTION.name,
        replace(ATTENTION, window=512, sees_pictures=True).name,
        DividedAttention(**vars(ATTENTION), blocks=132, places=528).name,
    ],
)
def test_kernels_of_chunks_stay_as_they_are(name: str) -> None:
    text = kernel(f"{name}_kernel", "y_ptr[0] = 1;")
    assert begin_early(text) == text


def test_a_kernel_in_another_form_is_refused() -> None:
    with pytest.raises(TargetError, match="in a form that is not known"):
        begin_early(kernel("one", "y_ptr[0] = 1;").replace('extern "C" ', ""))


def test_a_kernel_that_says_where_waits_there() -> None:
    """Whatever it reads ahead of that place is none of what it takes from there."""
    wait = "gemma4_wait_for_launches();"
    statements = "if (n < 3) {", "int k = q_weight0_ptr[0];", wait, "y_ptr[0] = k;", "} else {"
    text = begin_early(kernel("decode_attention_kernel", *statements, wait, "y_ptr[1] = 0;", "}"))
    found = body_of(text)
    assert found == [BEGIN, *statements[:2], WAIT, *statements[3:], WAIT, "y_ptr[1] = 0;", "}"]
    assert text.count(f'"{WAIT};" : "+l"(q_scale0_ptr), "+l"(y_ptr) : : "memory"') == 2
    assert f'"{BEGIN};" : "+l"(q_weight0_ptr) : : "memory"' in text
