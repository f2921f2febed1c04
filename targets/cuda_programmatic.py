"""Kernels that begin while the one before them ends: Hopper's programmatic dependent launch.

A step is some hundred launches, each of which waits for the one before it, begins its blocks and
asks memory for its first weights: on a fast GPU that takes as long as the work of the small ones.
With programmatic edges in a CUDA graph (runtime/device/programmatic_launch.py) a kernel's blocks
begin when all of those before have begun, and what they ask for first is on its way when they may
read what the others made.

In the image for `sm_90a` alone the text does something: each kernel lets the next one begin, and
waits for the one before it ahead of its first access to anything but weights. It takes its pointers
from that wait, for ptxas moves loads of memory that nothing writes, as it thinks by `__restrict__`,
ahead of it otherwise. A kernel that knows more of what it reads says itself where it waits
(`wait_for_launches`). Weights' pointers come from where the next one is let in: those loads it
would move behind the wait, to where their values are needed.
"""

from __future__ import annotations

import re

from gemma4_compile.errors import TargetError
from gemma4_compile.targets.kernels.common.builtins import WAIT_FOR_LAUNCHES

_HEAD = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\(\d+(?:, (\d+))?\) )?(\w+)\((.*)\) \{'
)
_WEIGHTS = re.compile(r"q_(?:weight|scale)\d*_ptr(?:_\d+)?")
"""Parameters that no kernel writes, by the names that `weight_layout` gives them."""
_ATTENTION = "prefill_attention", "picture_prefill_attention", "divided_attention"
_CHUNKS = ("int8_gemm_", "gemm_", *_ATTENTION)
"""Kernels of a prompt's chunks, which no graph has: pointers from a wait would cost them a few
per cent."""
_VECTORS = re.compile(r"(?:\w+_)?int8_gemv_\w+")
"""Kernels of one position, whose loads of weights stay ahead of the wait if registers are bounded:
otherwise they would take too many."""
_LOOP = re.compile(r" *for \(int (\w+) = 0; \1 < [1-9]\d*; \+\+\1\) \{")
_PAST = ("return", "break", "continue", "goto")
_GUARD = "#if defined(__CUDA_ARCH_FEAT_SM90_ALL)"
_BEGIN_NEXT = '  asm volatile("griddepcontrol.launch_dependents;" : {pointers} : : "memory");'
_WAIT = '  asm volatile("griddepcontrol.wait;" : {pointers} : : "memory");'


def begin_early(source: str) -> str:
    """The text of kernels, each of which lets the next begin and waits for the one before it.

    Raises
    ------
    TargetError
        If TVM writes kernels in another form than is read here.
    """
    result: list[str] = []
    lines = iter(source.split("\n"))
    kernels = 0
    for line in lines:
        result.append(line)
        if head := _HEAD.fullmatch(line):
            kernels += 1
            body: list[str] = []
            for inner in lines:
                if inner == "}":
                    break
                body.append(inner)
            result += [*_body(head[2], head[3], body, int(head[1] or 1) > 1), "}"]
    if kernels != len(re.findall(r"__global__ [^;{]*\{", source)):
        raise TargetError(
            "TVM writes kernels for CUDA in a form that is not known here",
            hint="install the version of apache-tvm that this version requires",
        )
    return "\n".join(result)


def _body(name: str, parameters: str, body: list[str], is_bounded: bool) -> list[str]:
    """A kernel's statements with both calls; `is_bounded`: several blocks are to be resident."""
    if name.startswith(_CHUNKS):
        return body
    pointers = [one.split()[-1] for one in parameters.split(", ") if "*" in one]
    if any(_is_wait(line) for line in body):
        return _waiting_itself(pointers, body)
    own = [pointer for pointer in pointers if not _WEIGHTS.fullmatch(pointer)]
    weights = [pointer for pointer in pointers if _WEIGHTS.fullmatch(pointer)]
    if not (is_bounded and _VECTORS.fullmatch(name)):
        weights = []
    at = _first_access(body, own)
    begin, wait = _taking(_BEGIN_NEXT, weights), _taking(_WAIT, own)
    return [_GUARD, *begin, "#endif", *body[:at], _GUARD, *wait, "#endif", *body[at:]]


def _is_wait(line: str) -> bool:
    return line.strip() == f"{WAIT_FOR_LAUNCHES}();"


def _waiting_itself(pointers: list[str], body: list[str]) -> list[str]:
    """The statements of a kernel that says where it waits.

    What it names ahead of the first of those places is of earlier calls.
    """
    ahead = "\n".join(body[: next(i for i, line in enumerate(body) if _is_wait(line))])
    early = [one for one in pointers if re.search(rf"\b{re.escape(one)}\b", ahead)]
    late = [one for one in pointers if one not in early]
    result = [_GUARD, *_taking(_BEGIN_NEXT, early), "#endif"]
    for line in body:
        result += [_GUARD, *_taking(_WAIT, late), "#endif"] if _is_wait(line) else [line]
    return result


def _taking(statement: str, pointers: list[str]) -> list[str]:
    """A statement that may change pointers, as far as the compiler knows, to others of memory."""
    operands = ", ".join(f'"+l"({pointer})' for pointer in pointers)
    known = [f"  __builtin_assume(__isGlobal({pointer}));" for pointer in pointers]
    return [statement.format(pointers=operands), *known]


def _first_access(body: list[str], pointers: list[str]) -> int:
    """The first statement that names one of the pointers, or goes past others.

    Every thread gets there: it is none of an `if`, but may be of a loop, which then waits each
    time; only the first takes long.
    """
    named = re.compile(rf"\b(?:{'|'.join([*map(re.escape, pointers), *_PAST])})\b")
    begin = depth = within = 0
    for i, line in enumerate(body):
        if depth == within:
            begin = i
        depth += line.count("{") - line.count("}")
        if depth == within + 1 and _LOOP.fullmatch(line):
            within = depth
        elif named.search(line):
            return begin
        within = min(within, depth)
    return len(body)
