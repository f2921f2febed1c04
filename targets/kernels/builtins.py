"""Built-in functions of the device language that TVM has no word for."""

from __future__ import annotations

from typing import Any

from tvm import tirx


def dot4(a: Any, b: Any) -> Any:
    """Sum of the products of four signed bytes of two uint32: int32."""
    return tirx.call_pure_extern("int32", "dot4I8Packed", a, b)
