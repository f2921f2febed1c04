"""Numerics reports of packages that see and hear: what passes, what fails, what is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import CheckpointError, VerificationError
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.model_spec.parameters import Parameter, Role, Source
from gemma4_compile.package.artifacts import read_artifact
from gemma4_compile.package.files import hash_file, write_json
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.verification import subject
from gemma4_compile.verification.media import compare_weights
from gemma4_compile.verification.numerics_report import verify_package
from gemma4_compile.verification.report import table
from gemma4_compile.verification.subject import VerifyRequest
from tests import media_checkpoints
from tests.media_checkpoints import KINDS
from tests.packages import Silent, compile_small

pytestmark = [pytest.mark.parity, pytest.mark.package]

CONTEXT, CHUNK, STEPS = 160, 150, 8
RECIPE = "f16"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def request_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., VerifyRequest]:
    """A copy of a kind's package; packages and their probes are compiled once."""

    def compile_once(request: CompileRequest, reporter: Silent) -> None:
        names = "-".join(sorted(one.value for one in request.modalities or ()))
        name = f"{Path(request.model).name}-{request.quant}-{names}-{request.context_length}"
        made = folder / (f"probe-{name}" if request.probe else name)
        if not made.exists():
            compile_small(replace(request, output=made), reporter)
        shutil.copytree(made, request.output)

    def make(
        kind: str = "e2b",
        modalities: frozenset[Modality] = frozenset(Modality),
        context: int = CONTEXT,
    ) -> VerifyRequest:
        model = folder / kind
        if not model.exists():
            media_checkpoints.write_checkpoint(model, KINDS[kind])
        if KINDS[kind].audio is None:
            modalities -= {Modality.AUDIO}
        reads_whole = (kind, context) == ("e2b", CONTEXT)
        request = CompileRequest(
            *(str(model), "cpu", RECIPE, tmp_path / "package"),
            context_length=context,
            prefill_chunk=min(CHUNK, context),
            modalities=modalities,
            # Others read a picture as a whole; where no prompt fits, the rows' number is the same.
            image_tokens=70 if Modality.IMAGE in modalities and not reads_whole else None,
        )
        compile_once(request, Silent())
        return VerifyRequest(tmp_path / "package", str(model), steps=STEPS, texts=())

    monkeypatch.setattr(subject, "compile_model", compile_once)
    return make


def note_hash(package: Path, name: str) -> None:
    """Make the provenance agree with a file that a test has changed."""
    path, file = package / abi.PROVENANCE_FILE, package / name
    values = read_artifact(path)
    values["files"][name] = {"nbytes": file.stat().st_size, "sha256": hash_file(file).sha256}
    write_json(path, values)


def change_tensor(
    package: Path, name: str, change: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
) -> None:
    """Change the stored values of a tensor, and the hash of its shard."""
    for shard in read_artifact(package / abi.TENSOR_CACHE_FILE)["records"]:
        for record in shard["records"]:
            if record["name"] == name:
                path = package / shard["dataPath"]
                data = np.fromfile(path, np.uint8)
                part = slice(record["byteOffset"], record["byteOffset"] + record["nbytes"])
                values = data[part].view(record["dtype"])
                data[part] = change(values).astype(values.dtype).view(np.uint8)
                data.tofile(path)
                return note_hash(package, shard["dataPath"])
    raise AssertionError(f"no tensor {name}")


@pytest.mark.slow
# Dense models have the towers of those with experts.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dense"])
def test_a_good_package_passes(kind: str, request_for: Callable[..., VerifyRequest]) -> None:
    request = request_for(kind)
    found = verify_package(request, Silent())
    assert found.passed, found.failures
    content = read_artifact(request.package / abi.NUMERICS_FILE)
    expected = {"image"} if KINDS[kind].audio is None else {"image", "audio"}
    assert set(content["media"]) == expected
    for modality, medium in content["media"].items():
        shown = medium["shown"]
        most = 70 if modality == "image" and kind != "e2b" else CONTEXT
        assert 0.7 * min(most, 70) < shown["rows"] <= most
        assert medium["prompt"] + medium["decoded"] <= CONTEXT
        assert medium["weights"]["error"] <= medium["weights"]["bound"]
        own, whole = medium["arithmetic"], medium["whole"]
        assert own["logits"]["positions"] == STEPS + 1
        assert own["logits"]["top1"] == 1
        # What float16 rounds away of the weights is seen against the checkpoint only.
        assert 0 < own["rows"]["relative_error"] < own["rows_bound"] < whole["rows_bound"]
        assert 0 < own["rows"]["mean_error"] < own["rows"]["max_error"]
    text = table(content)
    assert "a picture of " in text
    assert ("a sound of " in text) == ("audio" in expected)
    assert text.count("greedy tokens that agree") == 2 * len(expected)
    assert "too short for it" not in text


@pytest.mark.slow
def test_a_damaged_tower_fails(request_for: Callable[..., VerifyRequest]) -> None:
    request = request_for()
    zeroed = "vision_tower.encoder.layers.1.self_attn.q_proj.linear"
    flipped = "audio_tower.layers.0.lconv1d.linear_end.linear"
    change_tensor(request.package, f"{zeroed}.weight", lambda values: values * 0)
    change_tensor(request.package, f"{flipped}.weight", lambda values: -values)
    found = verify_package(request, Silent())
    assert not found.passed
    with pytest.raises(VerificationError, match="picture: stored rows of"):
        found.check(request.package)
    begins = [
        f"picture: stored rows of `model.{zeroed}.weight` differ from the checkpoint's by 1,",
        f"sound: stored rows of `model.{flipped}.weight` differ from the checkpoint's by 2,",
        "picture, against the checkpoint: relative error of the tower's rows is ",
        "sound, against the checkpoint: relative error of the tower's rows is ",
    ]
    for begin in begins:
        assert [text for text in found.failures if text.startswith(begin)], found.failures
    assert not [text for text in found.failures if "arithmetic" in text], "the weights are its own"


@pytest.mark.slow
def test_a_library_with_another_tower_fails(
    request_for: Callable[..., VerifyRequest], tmp_path: Path
) -> None:
    request = request_for()
    kind = KINDS["e2b"]
    vision = {**kind.vision, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
    wrong = replace(kind, vision=vision)
    model = media_checkpoints.write_checkpoint(tmp_path / "wrong", wrong)
    options = CompileRequest(
        *(str(model), "cpu", RECIPE, tmp_path / "other"),
        context_length=CONTEXT,
        prefill_chunk=CHUNK,
        modalities=None,
        only="library",
    )
    compile_small(options)
    shutil.copyfile(tmp_path / "other" / "model.so", request.package / "model.so")
    note_hash(request.package, "model.so")
    found = verify_package(request, Silent())
    said = "picture, arithmetic: relative error of the tower's rows is "
    assert [text for text in found.failures if text.startswith(said)], found.failures
    assert not [text for text in found.failures if text.startswith("sound")], "it is as it was"


@pytest.mark.slow
def test_a_package_of_text_alone_says_nothing_of_media(
    request_for: Callable[..., VerifyRequest],
) -> None:
    request = request_for("unified", frozenset({Modality.TEXT}))
    found = verify_package(request, Silent())
    assert found.passed, found.failures
    content = found.to_json()
    assert "media" not in content
    assert "picture" not in table(content)


@pytest.mark.slow
def test_a_context_without_room_leaves_the_rows(
    request_for: Callable[..., VerifyRequest],
) -> None:
    request = request_for(context=14)
    content = verify_package(request, Silent()).to_json()
    for medium in content["media"].values():
        assert medium["prompt"] is None
        assert medium["arithmetic"]["logits"] is None
        assert medium["arithmetic"]["rows"]["relative_error"] < medium["arithmetic"]["rows_bound"]
    assert table(content).count("too short for it: its rows alone were run") == 2


@pytest.mark.slow
def test_a_reference_without_towers_is_refused(
    request_for: Callable[..., VerifyRequest], tmp_path: Path
) -> None:
    request = request_for()
    blind = shutil.copytree(request.reference, tmp_path / "blind")
    config = read_artifact(blind / "config.json")
    write_json(blind / "config.json", {**config, "vision_config": None})
    with pytest.raises(
        CheckpointError, match=r"takes audio, image, text.*no image input"
    ) as caught:
        verify_package(replace(request, reference=str(blind)), Silent())
    assert "the package was made from" in str(caught.value.hint)


WIDTH = 64
MATRIX = Parameter("linear", Role.LINEAR, (128, WIDTH), (Source("linear.weight", (128, WIDTH)),))
VECTOR = Parameter("norm", Role.VECTOR, (WIDTH,), (Source("norm.weight", (WIDTH,)),))
SCALAR = Parameter("clip", Role.VECTOR, (1,), (Source("clip.input_max", ()),))


def values_of(change: Callable[[dict[str, Any]], None] = lambda values: None) -> Any:
    rng = np.random.default_rng(3)
    values: dict[str, Any] = {
        "linear.weight": rng.standard_normal((128, WIDTH)).astype(np.float32),
        "norm.weight": rng.standard_normal(WIDTH).astype(np.float32),
        "clip.input_max": np.array([np.finfo(np.float32).max]),
    }
    values["linear.weight"][7] = 0
    change(values)
    return lambda name, begin, end: values[name][begin:end]


@pytest.mark.parametrize("recipe", ["f32", "f16", "q8f16"])
def test_equal_weights_have_no_error(recipe: str) -> None:
    plan = storage_plan((MATRIX, VECTOR, SCALAR), RECIPES[recipe], None)
    found = compare_weights(plan, values_of(), values_of())
    assert found.error == 0
    assert 0 <= found.error <= found.bound


def _damages() -> Iterator[Any]:
    def put(name: str, place: Any, value: Any) -> Callable[[dict[str, Any]], None]:
        def change(values: dict[str, Any]) -> None:
            values[name][place] = value

        return change

    yield pytest.param("linear.weight", put("linear.weight", 99, 0), id="a row is gone")
    yield pytest.param("linear.weight", put("linear.weight", (127, 1), 3.0), id="one weight")
    yield pytest.param("linear.weight", put("linear.weight", (0, 0), np.nan), id="not a number")
    yield pytest.param("linear.weight", put("linear.weight", (7, 2), 0.1), id="a row of zeros")
    yield pytest.param("norm.weight", put("norm.weight", 5, 2.0), id="of a vector")
    yield pytest.param("clip.input_max", put("clip.input_max", 0, 1.0), id="a scalar")


@pytest.mark.parametrize("recipe", ["f32", "f16", "q8f16"])
@pytest.mark.parametrize(("name", "damage"), _damages())
def test_a_damaged_weight_is_named(
    name: str, damage: Callable[[dict[str, Any]], None], recipe: str
) -> None:
    plan = storage_plan((MATRIX, VECTOR, SCALAR), RECIPES[recipe], None)
    found = compare_weights(plan, values_of(damage), values_of())
    assert found.tensor == name
    assert not found.error <= found.bound
