"""A few rows at a time on the emulated Metal device: what one token after the other gives."""

from __future__ import annotations

import numpy as np
import pytest

from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.check.kernel_check import check_kernels, kernels_of
from gemma4_compile.runtime.device import device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from tests import models, tolerances
from tests.drafted import drafted_package, let_guess

# Rows of a step, all numbers of which `tests/e2e/test_drafts.py` has. A window is of 16 keys or
# fewer, and wraps.
ROUNDS = (1, 9, 4, 2)
# 16 and 32 bits, and each way of keeping keys; `tests/e2e/test_drafts.py` has every kind of model,
# tests/metal/test_kernels.py the kernels of every recipe.
CASES = [("e2b", "q4f16"), ("moe", "f32")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "recipe"), CASES)
def test_rows_have_the_logits_of_single_tokens(
    kind: str,
    recipe: str,
    metal_packages: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = Package.open(drafted_package(tmp_path_factory, kind, recipe, target="metal").package)
    plain, engine = Engine(package, drafts=0), Engine(package)
    rounds = engine.rounds
    assert rounds is not None
    text = models.prompt(30 + sum(ROUNDS), seed=13).tolist()
    for one in (plain, engine):
        one.clear()
        one.prefill(text[:29])
    rounds.advance(text[29], 0)
    rounds.accept(0)
    expected = [plain.decode(token) for token in text[29:]]
    begin = 30

    def guess(_token: int, position: int, count: int) -> list[int]:
        return text[position + 1 : position + 1 + count]

    let_guess(monkeypatch, engine, guess)
    for count in ROUNDS:
        guesses, rows = rounds.advance(text[begin], count - 1)
        assert len(guesses) == count - 1
        for row in range(count):
            found = rows.read(row)
            error = np.abs(found - expected[begin + row - 29]).max()
            assert error <= tolerances.ACTIVATIONS[recipe], f"row {row} of {count}"
        rounds.accept(count - 1)
        begin += count


@pytest.mark.slow  # tests/metal/test_tiny.py does it for a package without a drafter
def test_the_self_test_of_its_kernels_finds_no_fault(
    metal_packages: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`gemma4-chat --diagnose` tries as many rows as such a kernel takes."""
    made = drafted_package(tmp_path_factory, "e2b", "q4f16", target="metal")
    package = Package.open(made.package)
    where = device.Device.open(package.target)
    library = NativeLibrary(package.library_path, where)
    kernels = kernels_of(library.metadata())
    begins = ("few_row_gemm", "few_row_attention", "combine_few_rows")
    names = [next(name for name in kernels if name.startswith(begin)) for begin in begins]
    chosen = {name: kernels[name] for name in names}

    results = list(check_kernels(library, where, chosen, package.chat_config.prefill_chunk_size))

    assert {result.kind for result in results} == {"linear", "split_attention", "combine_splits"}
    assert not [result for result in results if result.problem]
