"""What a matmul does with its sums before it stores them."""

from __future__ import annotations

from enum import Enum


class Epilogue(str, Enum):
    """What a matmul does with its sums before it stores them."""

    NONE = "none"
    GELU_PAIRS = "gelu_pairs"  # rows 2r and 2r + 1 are gate and up: gelu(gate) * up
    GELU_GATE = "gelu_gate"  # gelu(y) * ple[:, layer * n + j]
    SOFTCAP = "softcap"
