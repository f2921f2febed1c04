"""Which of its kernels a matmul of a few rows launches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cuda import fake, few_rows


@pytest.mark.skipif(sys.platform != "linux", reason="CUDA's libraries are linked on Linux")
def test_a_large_matrix_has_tensor_cores_from_three_rows_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.replace_compiler(monkeypatch)
    few_rows.compile_cases(tmp_path / "model.so")
    fake.run("few_rows_by_number", tmp_path / "model.so")
