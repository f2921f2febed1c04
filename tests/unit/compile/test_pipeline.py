"""From request to package: what is written, partial builds, options, determinism, cleaning up."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.files import TEMPLATE_FILE
from gemma4_compile.compile import library_build, pipeline
from gemma4_compile.compile.pipeline import Summary, plan_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import (
    ArtifactError,
    CheckpointError,
    QuantizationError,
    TargetError,
    UsageError,
)
from gemma4_compile.package.artifacts import ChatConfig, Provenance, TensorCache, read_artifact
from gemma4_compile.targets.libraries import LIBRARIES
from gemma4_compile.targets.linker import ptx
from tests.models import DENSE_LIKE, write_checkpoint
from tests.packages import Silent, compile_small

pytestmark = pytest.mark.package


@pytest.fixture
def request_for(tmp_path: Path) -> CompileRequest:
    return CompileRequest("tiny", "cpu", "q4f16", tmp_path / "out", only="weights")


def run(request: CompileRequest) -> Summary:
    return compile_small(request)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.slow
def test_licences_come_and_go_with_the_library(request_for: CompileRequest) -> None:
    run(request_for)
    assert not {*abi.LICENCE_FILES} & {*files(request_for.output)}
    run(replace(request_for, only="library"))
    found = files(request_for.output)
    for name in abi.LICENCE_FILES:
        assert b"`model.so`" in found[name]
    assert {*abi.LICENCE_FILES} <= {*json.loads(found[abi.PROVENANCE_FILE])["files"]}
    run(request_for)
    assert {*abi.LICENCE_FILES} <= {*files(request_for.output)}


def test_package_is_complete_and_its_hashes_are_right(request_for: CompileRequest) -> None:
    summary = run(replace(request_for, only=None))
    found = files(request_for.output)
    provenance = Provenance.from_json(json.loads(found.pop(abi.PROVENANCE_FILE)))
    assert provenance.library == "model.so"
    assert provenance.files == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in found.items()
    }
    required = provenance.build["requirements"]
    shard_bytes = sum(len(data) for name, data in found.items() if name.startswith("params_"))
    assert 0 <= shard_bytes - required["weights_bytes"] < 0.01 * shard_bytes  # aligned in the shard
    assert 0 < required["max_binding_bytes"] <= required["weights_bytes"]
    assert required["kv_sliding_bytes"] > 0
    assert required["kv_full_bytes"] > 0
    expected = {abi.MANIFEST_FILE, abi.CHAT_CONFIG_FILE, abi.TENSOR_CACHE_FILE}
    assert expected | {"tokenizer.json", "params_shard_0.bin", "model.so"} <= set(found)
    assert summary.package_bytes == sum(map(len, found.values()))
    assert summary.libraries == (("model.so", len(found["model.so"])),)
    assert summary.report is not None
    assert summary.report.launches_per_token > 0
    assert summary.whole
    assert summary.converses, "the files of `tiny` are gone by now"


@pytest.mark.slow
def test_a_package_in_two_parts_converses_if_it_has_a_chat_template(
    request_for: CompileRequest,
) -> None:
    model = write_checkpoint(request_for.output.parent / "model", DENSE_LIKE).path
    for has_template in (True, False):
        if not has_template:
            (model / TEMPLATE_FILE).unlink()
        output = request_for.output.with_name(f"template {has_template}")
        request = replace(request_for, model=str(model), output=output)
        run(request)
        summary = run(replace(request, only="library"))
        assert summary.whole
        assert summary.converses == has_template


def test_partial_build_of_weights_has_no_library(request_for: CompileRequest) -> None:
    summary = run(request_for)
    assert summary.report is None
    assert not summary.whole
    assert not [name for name in files(request_for.output) if name.startswith("model.")]
    cache = TensorCache.from_json(read_artifact(request_for.output / abi.TENSOR_CACHE_FILE))
    stored = [record for shard in cache.shards for record in shard.records]
    assert stored[0].name == "embed_tokens.q_weight"


def test_partial_build_of_the_library_comes_from_the_config_alone(
    request_for: CompileRequest,
) -> None:
    run(replace(request_for, only="library"))
    library = {"model.so", *abi.LICENCE_FILES}
    assert set(files(request_for.output)) == {*library, abi.PROVENANCE_FILE}


def test_partial_builds_make_a_whole(request_for: CompileRequest, tmp_path: Path) -> None:
    run(request_for)
    run(replace(request_for, only="library"))
    run(request_for)  # and the other part is kept again
    run(replace(request_for, only=None, output=tmp_path / "whole"))
    assert set(files(request_for.output)) == set(files(tmp_path / "whole"))
    provenance = Provenance.from_json(read_artifact(request_for.output / abi.PROVENANCE_FILE))
    assert provenance.library == "model.so"


@pytest.mark.slow
def test_a_partial_build_keeps_the_size_of_shards(request_for: CompileRequest) -> None:
    small = replace(request_for, shard_bytes=64 << 10)
    run(small)
    before = files(request_for.output)
    run(replace(request_for, only="library"))
    after = files(request_for.output)
    shards = {name for name in before if name.startswith("params_shard")}
    assert shards
    assert {name: before[name] for name in shards} == {name: after[name] for name in shards}
    build = read_artifact(request_for.output / abi.PROVENANCE_FILE)["build"]
    assert build["shard_bytes"] == 64 << 10
    with pytest.raises(UsageError, match="another `shard_bytes`"):
        run(replace(request_for, shard_bytes=128 << 10))


def test_a_library_of_somebody_else_is_not_replaced(request_for: CompileRequest) -> None:
    run(request_for)
    (request_for.output / "model.so").write_bytes(b"mine")
    before = files(request_for.output)
    for only in ("library", None):
        with pytest.raises(UsageError, match=r"`model\.so` in .* is none of the package's files"):
            run(replace(request_for, only=only))
    assert files(request_for.output) == before
    run(request_for)  # the weights alone leave it where it is
    assert (request_for.output / "model.so").read_bytes() == b"mine"


def test_a_partial_build_takes_no_damage_over(request_for: CompileRequest) -> None:
    run(request_for)
    shard = request_for.output / "params_shard_0.bin"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    before = files(request_for.output)
    with pytest.raises(ArtifactError, match=r"cannot keep `params_shard_0\.bin`"):
        run(replace(request_for, only="library"))
    assert files(request_for.output) == before


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"quant": "f32"}, "recipe"),
        ({"context_length": 64}, "context_length"),
        ({"target": "webgpu"}, "target"),
        ({"model": "gemma-4-E2B-it"}, "source"),
    ],
)
def test_partial_build_that_does_not_fit(
    change: dict[str, Any], name: str, request_for: CompileRequest
) -> None:
    run(request_for)
    before = files(request_for.output)
    with pytest.raises(UsageError, match=f"another `{name}`"):
        run(replace(request_for, only="library", **change))
    assert files(request_for.output) == before


@pytest.mark.slow
def test_a_new_library_may_take_other_activations(request_for: CompileRequest) -> None:
    run(request_for)
    run(replace(request_for, only="library", activations="int8"))
    path = request_for.output / abi.PROVENANCE_FILE
    assert read_artifact(path)["build"]["activations"] == "int8"
    with pytest.raises(UsageError, match="another `activations`"):
        run(request_for)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"target": "webgpu"}, "float"),
        ({"target": "webgpu", "limits": "h200"}, "int8"),
        ({"target": "webgpu", "limits": "h200", "quant": "f16"}, "float"),
        ({"target": "webgpu", "limits": "h200", "activations": "float"}, "float"),
        ({"target": "webgpu", "limits": "h200", "activations": "exact"}, "float"),  # its old name
        ({"activations": "int8"}, "int8"),
        ({"target": "metal"}, "float"),
    ],
)
def test_the_limits_choose_activations_if_the_user_does_not(
    change: dict[str, Any], found: str, request_for: CompileRequest
) -> None:
    (plan,), *_ = plan_model(replace(request_for, **change))
    assert plan.target.activations == found


def test_same_input_gives_the_same_bytes(request_for: CompileRequest, tmp_path: Path) -> None:
    run(request_for)
    run(replace(request_for, output=tmp_path / "again"))
    assert files(request_for.output) == files(tmp_path / "again")


def test_defaults_are_capped_by_the_model(request_for: CompileRequest) -> None:
    write_checkpoint(request_for.output.parent / "model", DENSE_LIKE)
    run(replace(request_for, model=str(request_for.output.parent / "model")))
    chat = ChatConfig.from_json(read_artifact(request_for.output / abi.CHAT_CONFIG_FILE))
    assert chat.context_window_size == DENSE_LIKE["max_position_embeddings"] == 512
    assert chat.prefill_chunk_size == 512


def test_options_of_the_user_are_kept(request_for: CompileRequest) -> None:
    run(replace(request_for, context_length=100, prefill_chunk=7))
    chat = ChatConfig.from_json(read_artifact(request_for.output / abi.CHAT_CONFIG_FILE))
    assert (chat.context_window_size, chat.prefill_chunk_size) == (100, 7)
    build = read_artifact(request_for.output / abi.PROVENANCE_FILE)["build"]
    assert (build["context_length"], build["prefill_chunk"]) == (100, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "toaster"}, "unknown target `toaster`"),
        ({"quant": "q1f1"}, "unknown quantisation `q1f1`"),
        ({"limits": "compat"}, "no limits `compat`"),
        ({"activations": "int4"}, "unknown activations `int4`"),
        ({"activations": "int8", "quant": "f32"}, "recipe `f32` stores no integer weights"),
        ({"activations": "int8", "target": "metal"}, "target `metal` has no such kernels"),
        ({"context_length": 0}, "--context: expected 1 to"),
        ({"context_length": 10**9}, "--context: expected 1 to"),
        ({"prefill_chunk": 0}, "--prefill-chunk: expected 1 to"),
        ({"context_length": 8, "prefill_chunk": 9}, "--prefill-chunk: expected 1 to 8"),
    ],
)
def test_impossible_request(
    change: dict[str, Any], message: str, request_for: CompileRequest
) -> None:
    with pytest.raises(UsageError, match=message):
        run(replace(request_for, **change))
    assert not list(request_for.output.parent.iterdir())


def test_chunk_whose_activations_break_the_binding_limit(request_for: CompileRequest) -> None:
    wide = replace(
        request_for,
        model="gemma-4-31B-it",
        target="webgpu",
        only="library",
        context_length=262_144,
        prefill_chunk=2000,
    )
    with pytest.raises(
        UsageError, match=r"--prefill-chunk 2000: .* binds at most 134217728"
    ) as caught:
        run(wide)
    assert str(caught.value.hint) == "--prefill-chunk 1560 fits"


def test_wrong_tensors_are_found_before_the_library_is_built(
    request_for: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = request_for.output.parent / "model"
    write_checkpoint(model, DENSE_LIKE)
    config = json.loads((model / "config.json").read_text())
    config["text_config"]["intermediate_size"] = 224
    (model / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(library_build, "build_executable", lambda *_: pytest.fail("built"))
    with pytest.raises(CheckpointError, match=r"expected \((224, 96|96, 224)\)"):
        run(replace(request_for, model=str(model), only=None))


@pytest.mark.parametrize("force", [True, False])
def test_the_checkpoint_is_not_replaced_by_its_package(
    force: bool, request_for: CompileRequest
) -> None:
    model = write_checkpoint(request_for.output.parent / "model", DENSE_LIKE).path
    before = files(model)
    with pytest.raises(UsageError, match="would replace the checkpoint"):
        run(replace(request_for, model=str(model), output=model, force=force))
    with pytest.raises(UsageError, match="would replace the checkpoint"):
        run(replace(request_for, tokenizer=str(model), output=model, force=force))
    assert files(model) == before


def test_a_package_may_have_the_name_of_its_model(
    request_for: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(request_for.output.parent)
    for _ in range(2):  # the second run replaces the first one's
        run(replace(request_for, output=Path("tiny")))


def test_nothing_is_left_when_the_linker_fails(
    request_for: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TargetError("zig failed")

    monkeypatch.setattr(library_build, "link", fail)
    with pytest.raises(TargetError):
        run(replace(request_for, only=None))
    assert not list(request_for.output.parent.iterdir())


def test_weight_that_is_not_finite_is_an_error_and_leaves_nothing(
    request_for: CompileRequest,
) -> None:
    model = request_for.output.parent / "model"
    write_checkpoint(model, DENSE_LIKE)
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = np.array([np.nan], "<f4").tobytes()
    path.write_bytes(bytes(data))
    with pytest.raises(QuantizationError, match="not finite"):
        run(replace(request_for, model=str(model)))
    assert [path.name for path in request_for.output.parent.iterdir()] == ["model"]


def test_a_tool_of_one_of_several_targets_is_missed_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the libraries of the others were compiled."""

    def none_found() -> None:
        raise TargetError("no CUDA compiler was found")

    def open_source(*_: object, **__: object) -> None:
        raise AssertionError("the model is opened")

    monkeypatch.setattr(ptx, "find_compiler", none_found)
    monkeypatch.setattr(pipeline, "open_source", open_source)
    forms = (LIBRARIES["default"], LIBRARIES["cuda"])
    request = CompileRequest("tiny", "webgpu", "q4f16", tmp_path / "package", libraries=forms)
    with pytest.raises(TargetError, match="no CUDA compiler"):
        pipeline.compile_model(request, Silent())
    with pytest.raises(AssertionError, match="is opened"):
        pipeline.compile_model(replace(request, only="weights"), Silent())
