"""What holds for the whole repository: no traces of a machine, a test for every source file."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE_FOLDERS = ("gemma4_compile", "model_spec", "quantization", "targets")
TEST_FOLDERS = ("unit", "passes", "numerics", "parity", "e2e", "cuda")

# Written with brackets, so that this file does not hold what it looks for.
FORBIDDEN = re.compile(
    r"/wor[k]/|/roo[t]/|/hom[e]/|/tm[p]/[a-z0-9]|registry\.npm[j]s|py[p]i\.org|python[h]osted"
    r"|(deb|security)\.deb[i]an\.org|snapshot\.deb[i]an",
)

# Source files without a test file of their own name, and why.
EXCEPTIONS: dict[str, str] = {
    "gemma4_compile/abi.py": "constants; tests/web loads packages in the client",
    "gemma4_compile/types.py": "aliases without code",
    "model_spec/matrices.py": "protocols without code",
    "gemma4_compile/operators/types.py": "protocols without code; mypy reads them",
}
# Files that are tested together elsewhere, by the place where they are.
TESTED_TOGETHER: dict[str, tuple[str, ...]] = {
    "tests/unit/runtime/server: test_api.py over connections, test_requests.py by field": (
        "gemma4_compile/runtime/server/answers.py",
        "gemma4_compile/runtime/server/api_error.py",
        "gemma4_compile/runtime/server/fields.py",
        "gemma4_compile/runtime/server/messages.py",
        "gemma4_compile/runtime/server/service.py",
    ),
    "tests/unit/verification/test_numerics_report.py": ("gemma4_compile/verification/subject.py",),
    "tests/smoke/test_presets.py and every test that compiles a package": (
        "gemma4_compile/build.py",
        "gemma4_compile/request.py",
    ),
    "tests/unit/test_terminal.py": ("gemma4_compile/progress.py",),
    "tests/unit/package/test_shards.py": ("gemma4_compile/package/files.py",),
    "tests/passes/test_fuse_*.py, test_quantize_activations.py and test_split_matmuls.py": (
        "gemma4_compile/passes/fuse.py",
        "gemma4_compile/passes/fusion_limits.py",
        "gemma4_compile/passes/operator_graph.py",
    ),
    "tests/unit/model_spec/test_component.py": (
        "model_spec/components.py",
        "model_spec/export.py",
        "model_spec/text/component.py",
    ),
    "tests/unit/model_spec/text/test_parameters.py": ("model_spec/parameters.py",),
    "tests/unit/model_spec/test_config_refusals.py": ("model_spec/text/config_variants.py",),
    "tests/unit/model_spec/text/test_layer_plan.py": ("model_spec/text/kv_sharing.py",),
    "tests/unit/reports/test_plan.py": ("model_spec/text/memory.py",),
    "signatures: tests/smoke/test_presets.py; values: tests/parity/test_float32.py": (
        "model_spec/layers/attention.py",
        "model_spec/layers/mlp.py",
        "model_spec/layers/moe.py",
        "model_spec/layers/norm.py",
        "model_spec/text/decoder.py",
        "model_spec/text/export.py",
        "model_spec/text/kv_cache.py",
        "model_spec/text/per_layer_embedding.py",
        "model_spec/text/sampler.py",
        "quantization/matrix.py",
    ),
    "tests/parity/test_audio_mel.py": ("model_spec/audio/mel.py",),
    "tests/parity/test_audio_rows.py": (
        "model_spec/audio/export.py",
        "model_spec/audio/tower.py",
        "model_spec/audio/unified.py",
    ),
    "tests/passes/test_schedule_rules.py": (
        "targets/schedules/own_kernels.py",
        "targets/schedules/plain_loops.py",
    ),
    "tests/e2e/test_package.py opens packages": ("gemma4_compile/runtime/conversation_check.py",),
    "tests/unit/runtime/test_schema_process.py": (
        "gemma4_compile/confined/frames.py",
        "gemma4_compile/confined/limits.py",
        "gemma4_compile/confined/schemas.py",
    ),
    "tests/numerics: every definition is made of them": (
        "gemma4_compile/operators/heads.py",
        "gemma4_compile/operators/math.py",
        "gemma4_compile/operators/pointwise.py",
        "gemma4_compile/operators/tir.py",
    ),
    "tests/numerics/test_kernels.py": (
        "gemma4_compile/device_check/comparison.py",
        "gemma4_compile/device_check/definitions.py",
    ),
}
EXCEPTIONS |= {name: place for place, names in TESTED_TOGETHER.items() for name in names}


def tracked(*patterns: str) -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to list")
    listed = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    names = [name for name in listed.stdout.split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def test_no_machine_paths_and_no_registry_hosts() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def in_a_family(name: Path) -> bool:
    """Whether a kernel's family, or an operator, has its tests in tests/numerics."""
    tests = ROOT / "tests" / "numerics"
    if name.parts[:2] == ("targets", "kernels") and len(name.parts) == 4:
        return any((tests / name.parts[2]).glob("test_*.py"))
    if name.parts[:2] == ("gemma4_compile", "operators"):
        module = f"gemma4_compile.operators.{name.stem} import"
        return any(module in path.read_text("utf-8") for path in tests.rglob("*.py"))
    return False


def test_every_source_file_has_its_test_or_a_reason() -> None:
    missing = []
    for path in tracked("*.py"):
        name = path.relative_to(ROOT)
        if name.parts[0] not in SOURCE_FOLDERS or name.name == "__init__.py":
            continue
        test = f"test_{name.name}"
        mirrored = name.parent / test
        candidates = [ROOT / "tests" / "unit" / mirrored]
        if name.parts[0] == "gemma4_compile":
            candidates.append(ROOT / "tests" / "unit" / Path(*mirrored.parts[1:]))
        candidates += [ROOT / "tests" / folder / test for folder in TEST_FOLDERS]
        has_test = any(candidate.is_file() for candidate in candidates) or in_a_family(name)
        if has_test == (name.as_posix() in EXCEPTIONS):
            missing.append(f"{name}: {'listed, yet it has a test' if has_test else 'no test'}")
    assert not missing, "\n".join(missing)


def test_lists_name_what_exists() -> None:
    assert not [name for name in EXCEPTIONS if not (ROOT / name).is_file()]
    assert not [folder for folder in TEST_FOLDERS if not (ROOT / "tests" / folder).is_dir()]


@pytest.mark.parametrize("name", ["utils", "common", "helpers", "misc"])
def test_no_file_is_named_for_nothing(name: str) -> None:
    assert not [path for path in tracked() if path.stem == name and path.suffix == ".py"]


def test_no_process_pool_waits_for_a_worker_that_is_gone() -> None:
    """multiprocessing.Pool does for ever, a fork for threads; ProcessPoolExecutor names the end."""
    waits = re.compile(r"\bPool\(\w*\)|get_context\([\"']fork|import Pool\b")
    found = [path for path in tracked("*.py") if waits.search(path.read_text("utf-8"))]
    assert found == [Path(__file__)]
