"""What holds for the whole repository: no traces of a machine, a test for every source file."""

import re
import subprocess
from pathlib import Path

import pytest

from tools.imports import SOURCES

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
    "gemma4_compile/runtime/server/service.py": "test_api.py next to it, over connections",
    "gemma4_compile/runtime/engine/prompt_reading.py": "tests/parity/test_prompt_logprobs.py",
    "gemma4_compile/runtime/library/joint_guesses.py": "tests/e2e/test_joint_rounds.py",
    "gemma4_compile/runtime/library/joint_graphs.py": "tests/e2e/test_joint_rounds.py",
    "gemma4_compile/runtime/server/starting.py": "test_api.py next to it, over connections",
    "gemma4_compile/runtime/server/run.py": "test_scheduler.py and test_asides.py next to it",
    "gemma4_compile/runtime/tool_calls.py": "a former path: tests/unit/test_former_paths.py",
    "gemma4_compile/runtime/grammar/call_number.py": "test_call_schema.py next to it",
    "gemma4_compile/runtime/engine/aside.py": "tests/unit/runtime/server/test_asides.py",
    "gemma4_compile/runtime/prefixes/shelf.py": "tests/e2e/test_sequence_engine.py",
    "gemma4_compile/runtime/server/models/offered.py": "protocols without code; mypy reads them",
    **dict.fromkeys(
        (f"gemma4_compile/runtime/{name}.py" for name in ("listening", "served_package")),
        "tests/unit/runtime/test_serve.py and test_serve_several.py, as users run them",
    ),
    **dict.fromkeys(
        (f"gemma4_compile/runtime/server/ollama/{name}.py" for name in ("fixed", "lists")),
        "test_endpoints.py next to it, over connections",
    ),
    "gemma4_compile/runtime/server/openai_responses/stored.py": "test_endpoints.py next to it",
    "gemma4_compile/types.py": "aliases without code",
    "model_spec/config/keys.py": "tests/parity/test_config_keys.py, next to transformers",
    "model_spec/layers/plan.py": "dataclasses without code",
    "model_spec/matrices.py": "protocols without code",
    "gemma4_compile/progress.py": "a protocol without code; mypy reads it",
    "gemma4_compile/operators/types.py": "protocols without code; mypy reads them",
    "gemma4_compile/operators/dots.py": "tests/numerics/attention/test_host_attention.py",
    **dict.fromkeys(
        (f"gemma4_compile/verification/{name}.py" for name in ("encoder_reference", "verify")),
        "tests/unit/verification/test_encoder.py",
    ),
    **dict.fromkeys(
        (f"gemma4_compile/media/{name}.py" for name in ("limits", "picture", "sound", "video")),
        "tests/unit/media/test_decode.py, in the process that decodes",
    ),
    "gemma4_compile/media/heif_boxes.py": "tests/unit/media/test_heif.py, which reads files",
    **dict.fromkeys(
        (f"gemma4_compile/media/{name}.py" for name in ("containers", "samples")),
        "tests/unit/media/test_sound_track.py, which needs both",
    ),
    **dict.fromkeys(
        (f"gemma4_compile/media/{name}.py" for name in ("resample", "sizes")),
        "tests/unit/media/test_preprocess.py, next to transformers and torch",
    ),
    **dict.fromkeys(
        (f"model_spec/vision/{name}.py" for name in ("export", "projection", "tower", "unified")),
        "tests/parity/test_vision.py; signatures: tests/unit/model_spec/vision/test_component.py",
    ),
    **dict.fromkeys(
        (f"model_spec/audio/{name}.py" for name in ("export", "mel", "tower", "unified")),
        "tests/parity/test_audio_*.py; signatures: tests/unit/model_spec/audio/test_component.py",
    ),
    "gemma4_compile/template/environment.py": "tests/parity/test_template_environment.py",
    "model_spec/embedding/padded.py": "tests/parity/test_client_texts.py, next to transformers",
    **dict.fromkeys(
        (f"model_spec/embedding/{name}.py" for name in ("export", "parameters")),
        "tests/parity/test_encoder.py; signatures: "
        "tests/unit/model_spec/embedding/test_component.py",
    ),
    **dict.fromkeys(
        (
            f"model_spec/gemma3n/{name}.py"
            for name in ("decoder", "export", "per_layer_embedding", "scales")
        ),
        "tests/parity/test_gemma3n.py",
    ),
    **dict.fromkeys(
        (f"model_spec/gemma3n/{name}.py" for name in ("layer_plan", "memory", "parameters")),
        "tests/unit/model_spec/gemma3n/test_component.py",
    ),
    "model_spec/drafter/export.py": "tests/unit/model_spec/drafter/test_component.py",
    "gemma4_compile/runtime/engine/device_sampling.py": "tests/e2e/test_engine.py",
    "gemma4_compile/runtime/engine/model_runner.py": "tests/e2e/test_engine.py",
    **dict.fromkeys(
        (f"gemma4_compile/runtime/server/embeddings/{name}.py" for name in ("requests", "service")),
        "tests/unit/runtime/server/embeddings/test_endpoints.py",
    ),
    "gemma4_compile/runtime/engine/rounds.py": "tests/e2e/test_drafter_engine.py",
    "gemma4_compile/runtime/engine/token_engine.py": "protocols without code; mypy reads them",
    **dict.fromkeys(
        (f"gemma4_compile/verification/{name}.py" for name in ("references", "torch_parts")),
        "tests/unit/verification/test_numerics_report.py, on compiled packages",
    ),
    "gemma4_compile/runtime/library/kv_rows.py": "tests/e2e/test_prefixes.py, as what follows",
    "gemma4_compile/runtime/prefixes/saved_rows.py": "tests/e2e/test_prefixes.py",
    "gemma4_compile/verification/form_measures.py": "tests/unit/verification/test_frontier.py",
    "gemma4_compile/verification/streams.py": "tests/parity/test_gemma3n.py",
    "gemma4_compile/verification/heads.py": "tests/unit/verification/test_transformer.py",
    "gemma4_compile/verification/text_inputs.py": "tests/unit/verification/test_towers.py",
    "gemma4_compile/operators/pointwise.py": "tests/numerics/audio/test_audio_kernels.py",
}

# Folders of kernels' parts, and the family whose tests run them.
PARTS_OF_KERNELS = {"prologues": "linear", "tiles": "linear", "weights": "linear"}


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
    """Return whether a kernel's family, or an operator, has its tests in tests/numerics."""
    tests = ROOT / "tests" / "numerics"
    if name.parts[:2] == ("targets", "kernels") and len(name.parts) == 4:
        family = PARTS_OF_KERNELS.get(name.parts[2], name.parts[2])
        return any((tests / family).glob("test_*.py"))
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


def test_every_package_is_in_the_list_of_a_wheel() -> None:
    """tests/unit/test_packaging.py, which builds one, is slow."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (listed,) = re.findall(r"^packages = \[[^\n]*\n(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    folders = {path.parent.relative_to(ROOT).parts for path in SOURCES.values()}
    wanted = {".".join(parts).removeprefix("gemma4_compile.") for parts in folders}
    names = re.findall(r'^ *"([\w.]+)",$', listed, re.MULTILINE)
    assert sorted(name.removeprefix("gemma4_compile.") for name in names) == sorted(wanted)
