"""WGSL of the calls in kernels/tiles/subgroup_matrices.py, which TVM's generator prints as calls.

A call is a line of its own and names its matrices by literal numbers, so that the text can
be written line by line. Tests write another one: tests/numerics/emulated_matrices.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gemma4_compile.targets.kernels.tiles import subgroup_matrices as calls

PREFIX = "gemma4_matrix_"
_CALL = re.compile(rf"^( *)({PREFIX}\w+)\((.*)\);$", re.MULTILINE)
_PLACE = re.compile(r"^&(\w+)\[(.*)\]$")
_ENTRY = re.compile(r"^@compute.*?\) \{\n", re.MULTILINE | re.DOTALL)
_BARRIER = re.compile(rf"^ *workgroupBarrier\(\);\n(?=.*\b{calls.UNIFORM_LOAD}\()", re.MULTILINE)
_PIECE = re.compile(rf"{calls.READ_PIECE}\(\(&\((\w+)\[")  # arguments have no cast
_POINTER = re.compile(r"\(&\(\(\([\w<>]+\*\)(\w+)\)\[")  # C's cast and address of an element

Write = Callable[..., str]
"""Writes a call: of its numbers, or of a matrix's number, the array, the place in it, the pitch."""


@dataclass(frozen=True)
class Dialect:
    """A way to write subgroup matrices.

    Attributes
    ----------
    head : lines before all others
    kinds : declaration of a matrix, after its name, by the prefix of the name
    statements : text of a call, by its name
    prologue : lines at the kernel's beginning
    """

    head: str
    kinds: Mapping[str, str]
    statements: Mapping[str, Write]
    prologue: str = ""


def _load(kind: str, of: str, order: str) -> Write:
    matrix = f"subgroup_matrix_{kind}<{of}, {calls.SIDE}, {calls.SIDE}>"

    def write(index: str, memory: str, first: str, pitch: str) -> str:
        name = "sum" if kind == "result" else kind
        place = f"&{memory}, u32({first}), {pitch}u"
        return f"{name}{index} = subgroupMatrixLoad<{matrix}, {order}>({place});"

    return write


def _clear(total: str) -> str:
    return f"sum{total} = subgroup_matrix_result<f32, {calls.SIDE}, {calls.SIDE}>();"


def _multiply_add(total: str, left: str, right: str) -> str:
    product = f"left{left}, right{right}, sum{total}"
    return f"sum{total} = subgroupMatrixMultiplyAccumulate({product});"


def _store(total: str, memory: str, first: str, pitch: str) -> str:
    return f"subgroupMatrixStore<row_major>(&{memory}, u32({first}), sum{total}, {pitch}u);"


WGSL = Dialect(
    # Subgroups as a whole make the calls, which Tint cannot see: it looks for whole blocks.
    head="diagnostic(off, chromium.subgroup_matrix_uniformity);\n"
    "enable chromium_experimental_subgroup_matrix;\n",
    kinds={
        "sum": f"subgroup_matrix_result<f32, {calls.SIDE}, {calls.SIDE}>",
        "left": f"subgroup_matrix_left<f16, {calls.SIDE}, {calls.SIDE}>",
        "right": f"subgroup_matrix_right<f16, {calls.SIDE}, {calls.SIDE}>",
    },
    statements={
        calls.CLEAR: _clear,
        calls.LEFT: _load("left", "f16", "row_major"),
        calls.RIGHT: _load("right", "f16", "col_major"),
        calls.RIGHT_TRANSPOSED: _load("right", "f16", "row_major"),
        calls.MULTIPLY_ADD: _multiply_add,
        calls.STORE: _store,
        calls.LOAD: _load("result", "f32", "row_major"),
    },
)


def write_matrices(text: str, dialect: Dialect = WGSL) -> str:
    """The text of a kernel with its calls written out; as it is where it has none."""
    if not any(name in text for name in (PREFIX, calls.UNIFORM_LOAD, calls.READ_PIECE)):
        return text
    used: dict[str, None] = {}

    def write(match: re.Match[str]) -> str:
        indent, name, inner = match.groups()
        line = dialect.statements[name](*_arguments(inner))
        for matrix in re.findall(r"\b(?:sum|left|right)\d+\b", line):
            used[matrix] = None
        return indent + line.replace("\n", "\n" + indent)

    body = _BARRIER.sub("", _CALL.sub(write, _read_pieces(_wgsl_pointers(text))))
    names = sorted(used, key=lambda name: (name.rstrip("0123456789"), len(name), name))
    declared = "".join(
        f"  var {name}: {dialect.kinds[name.rstrip('0123456789')]};\n" for name in names
    )
    start = body.index("enable ")
    entry = _ENTRY.search(body)
    assert entry is not None, "every kernel has an entry point"
    opening = body[start : entry.end()] + declared + dialect.prologue
    return body[:start] + dialect.head + opening + body[entry.end() :]


def _after_index(text: str, at: int) -> int:
    """The place after the bracket that closes the one before `at`."""
    depth = 1
    while depth:
        depth += {"[": 1, "]": -1}.get(text[at], 0)
        at += 1
    return at


def _read_pieces(text: str) -> str:
    """Reads of 16 bytes of arrays of halves, which become arrays of such."""
    parts, end = [], 0
    names = set()
    for match in _PIECE.finditer(text):
        at = _after_index(text, match.end())
        assert text.startswith(")))", at), "the address of an element alone"
        names.add(match.group(1))
        parts += [
            text[end : match.start()],
            f"{match.group(1)}[({text[match.end() : at - 1]})>>3u]",
        ]
        end = at + 3
    text = "".join([*parts, text[end:]])
    for name in names:
        text, count = re.subn(rf"\b{name} : array<f16>", f"{name} : array<vec4<u32>>", text)
        assert count == 1, f"{name} is an argument of halves"
    return text


def _wgsl_pointers(text: str) -> str:
    """`(&(((T*)a)[i]))` as WGSL's `&a[i]`."""
    parts, end = [], 0
    for match in _POINTER.finditer(text):
        at = _after_index(text, match.end())
        assert text.startswith("))", at), "the address of an element"
        parts += [text[end : match.start()], f"&{match.group(1)}[", text[match.end() : at]]
        end = at + 2
    return "".join([*parts, text[end:]])


def _arguments(text: str) -> list[str]:
    """A call's numbers without their type, and the array and the index of a place."""
    found: list[str] = []
    depth = begin = 0
    for at, char in enumerate(text + ","):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
        if char == "," and not depth:
            part, begin = text[begin:at].strip(), at + 1
            place = _PLACE.match(part)
            found += place.groups() if place else [part.removesuffix("i")]
    return found
