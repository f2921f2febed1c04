"""Epilogue of a matmul: applied to its sums before they are stored."""

from __future__ import annotations

from enum import Enum


class Epilogue(str, Enum):
    """Epilogue of a matmul: applied to its sums before they are stored."""

    NONE = "none"
    GELU_PAIRS = "gelu_pairs"  # rows 2r and 2r + 1 are gate and up: gelu(gate) * up
    GELU_GATE = "gelu_gate"  # gelu(y) * ple[:, layer * n + j]
    SOFTCAP = "softcap"
