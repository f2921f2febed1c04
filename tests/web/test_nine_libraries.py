"""Every library for browsers of one package, on Dawn, next to transformers on the same shards.

lavapipe has subgroups of 4, 8 and 16 threads. Nothing here has 32: the libraries that want them
run with exchanges through workgroup memory (`subgroups.mjs`), which shows that every thread asks
the right one for the right value, and not what a device makes of the instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.package.artifacts import Provenance, read_artifact
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.targets.spec import INT8, WORDS
from tests import hf, tolerances
from tests.marks import slow_unless
from tests.web.compiled import EVERY
from tests.web.dawn import (
    SUBGROUP,
    DawnRun,
    Float32Array,
    Step,
    VulkanDriver,
    lavapipe_environment,
    run_on_dawn,
)

pytestmark = [pytest.mark.dawn, pytest.mark.parity, pytest.mark.slow]

RECIPE = "q4f16"
PROMPT = 40  # longer than a chunk and a window
DECODED = 3
LARGEST = 16  # threads of lavapipe's largest subgroups


@dataclass(frozen=True)
class Truth:
    """Tokens, and what transformers says after each of them."""

    ids: list[int]
    logits: Float32Array


@pytest.fixture(scope="module")
def truth(nine_libraries: Path) -> Truth:
    ids = [2, *np.random.default_rng(0).integers(107, 1000, PROMPT + DECODED - 1).tolist()]
    return Truth(ids, hf.logits(hf.tiny(nine_libraries, RECIPE), ids))


def test_it_is_every_library_for_browsers(nine_libraries: Path) -> None:
    assert set(libraries(nine_libraries)) == set(EVERY)


@pytest.mark.parametrize("name", slow_unless(lambda name: name in ("default", "subgroups"), EVERY))
def test_logits_are_those_of_transformers(
    name: str, nine_libraries: Path, truth: Truth, lavapipe: VulkanDriver, folder: Path
) -> None:
    library = libraries(nine_libraries)[name]
    run = run_library(nine_libraries, library, truth, lavapipe, folder)
    size = library.subgroup_size
    assert (run.device["exchanges"] > 0) == (size > LARGEST)
    assert size > LARGEST or run.device["subgroupMinSize"] >= size
    for index, expected in enumerate(truth.logits[PROMPT - 1 :]):
        np.testing.assert_allclose(
            run.logits(str(index)), expected, rtol=0, atol=tolerance(library), err_msg=str(index)
        )


@pytest.mark.slow
def test_smaller_subgroups_than_a_library_was_made_for_are_seen(
    nine_libraries: Path, truth: Truth, lavapipe: VulkanDriver, folder: Path
) -> None:
    """What stands in for subgroups of 32 is not right whatever the kernels ask for."""
    library = libraries(nine_libraries)["subgroups"]
    run = run_library(nine_libraries, library, truth, lavapipe, folder, emulated=16)
    assert not np.allclose(run.logits("0"), truth.logits[PROMPT - 1], atol=tolerance(library))


def test_shaders_of_a_size_are_kept_apart() -> None:
    """Mesa would take those of subgroups of 4 for 8, and both libraries have some alike."""
    folders = {lavapipe_environment(size)["MESA_SHADER_CACHE_DIR"] for size in (4, 8, 16)}
    assert len(folders) == 3


def libraries(package: Path) -> dict[str, LibraryRecord]:
    provenance = Provenance.from_json(read_artifact(package / abi.PROVENANCE_FILE))
    return {one.name: one for one in provenance.libraries}


def tolerance(library: LibraryRecord) -> float:
    if library.activations == INT8:
        return tolerances.LOGITS_INT8
    return tolerances.LOGITS_F32 if library.float16 == WORDS else tolerances.LOGITS_F16


def run_library(
    package: Path,
    library: LibraryRecord,
    truth: Truth,
    driver: VulkanDriver,
    folder: Path,
    emulated: int | None = None,
) -> DawnRun:
    size = library.subgroup_size
    is_wide = size > LARGEST
    steps: list[Step] = [{"op": "prefill", "ids": truth.ids[:PROMPT], "save": "0"}]
    for index, token in enumerate(truth.ids[PROMPT:], start=1):
        steps.append({"op": "decode", "id": token, "save": str(index)})
    return run_on_dawn(
        package,
        steps,
        folder,
        driver,
        subgroup=SUBGROUP if is_wide else max(SUBGROUP, size),
        library=library.file,
        emulated=emulated or (size if is_wide else 0),
    )
