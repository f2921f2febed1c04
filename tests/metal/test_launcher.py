"""The launcher of libraries for Metal, on a Metal that is none, in processes of its own."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.device import metal_launcher
from tests.marks import slow_unless
from tests.metal import fake

PROMPT = [2, 105, 106]
TOKENS = [300]
UNIFORM = [0.3, 0.9]
OWN = {metal_launcher.SWITCH: "own"}


@pytest.fixture(scope="module")
def expected(metal_packages: None, tiny_package: Path) -> dict[str, object]:
    """Of the other emulated device, which stands where TVM's runtime for Metal does."""
    engine = Engine.open(tiny_package)
    logits = [engine.prefill(PROMPT), *(engine.decode(token) for token in TOKENS)]
    uniform = iter(UNIFORM)
    drawn = engine.sampling.sampled(1.0, 0.9, lambda: next(uniform))
    tokens = [next(drawn) for _ in UNIFORM]
    drawn.close()
    digests = [hashlib.sha256(one.tobytes()).hexdigest() for one in logits]
    return {"logits": digests, "drawn": tokens}


@pytest.mark.parametrize("at_once", slow_unless(lambda at_once: not at_once, [False, True]))
def test_a_package_gives_the_same_bits_by_it(
    at_once: bool, expected: dict[str, object], tiny_package: Path, tmp_path: Path
) -> None:
    asked: dict[str, object] = {
        "prompt": PROMPT,
        "tokens": TOKENS,
        "uniform": UNIFORM,
        "at once": at_once,
    }
    asked["package"] = str(tiny_package)
    own = {**OWN, "XDG_CACHE_HOME": str(tmp_path)}
    found = fake.run("tests.metal.launched", asked, own).answer()
    counts = found.pop("counts")
    assert found.pop("pipelines") == {"kept": 0, "new": len(kept(tmp_path))}
    alive = found.pop("alive")
    assert isinstance(alive, list)
    assert found == expected
    assert len(kept(tmp_path)) > 30
    if at_once:  # the next run has nothing to compile
        again = fake.run("tests.metal.launched", asked, own).answer()
        assert again.pop("pipelines") == {"kept": len(kept(tmp_path)), "new": 0}
    assert isinstance(counts, dict)
    if not at_once:  # a token is waited for, the step after it is not
        assert counts["waits"] == len(UNIFORM)
    assert 0 < counts["barriers"] < counts["launches"]
    assert set(alive) <= {"MTLFunction", "MTLComputePipelineState"}  # of the loaded package


def test_a_process_has_one_device_for_metal(metal_packages: None, tiny_package: Path) -> None:
    with pytest.raises(ArtifactError, match="has TVM's runtime for Metal") as caught:
        metal_launcher.install(tiny_package / "model.dylib")
    assert metal_launcher.SWITCH in str(caught.value.hint)
    assert not metal_launcher.is_installed()


def kept(folder: Path) -> list[str]:
    """Names of the kernels that are kept in a cache."""
    (path,) = (folder / "gemma4_compile" / "metal-pipelines").iterdir()
    return path.read_text().splitlines()[1:]
