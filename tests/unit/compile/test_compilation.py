"""What provenance says of a compilation, and what a drafter adds to a package."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemma4_compile import abi
from gemma4_compile.checkpoint.drafter import open_drafter, with_drafter
from gemma4_compile.checkpoint.sources import open_source
from gemma4_compile.compile import compilation
from gemma4_compile.compile.compilation import config_digest, fingerprint
from gemma4_compile.compile.pipeline import plan_model
from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.errors import ArtifactError, ConfigError, UsageError
from gemma4_compile.kernels import lower_library
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.parameters import parameter_table
from gemma4_compile.package.files import write_json
from gemma4_compile.package.partial_build import PartialBuild
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.reports.quantization_report import report_model
from gemma4_compile.runtime.package.integrity import Check, check_files
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.tiny import materialize_drafter
from tests import drafters, packages
from tests.drafted import CHUNK, CONTEXT, Drafted, drafted_package
from tests.marks import slow_unless
from tests.unit.model_spec.drafter.test_parameters import drafted as config_of

OTHER_MODELS = ("gemma-3n-E2B-it", "embeddinggemma-2")

pytestmark = pytest.mark.package


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Drafted:
    return drafted_package(tmp_path_factory, "e2b")


def request(made: Drafted, output: Path, *, drafter: Path | None) -> CompileRequest:
    return CompileRequest(
        model=str(made.target.path),
        target="cpu",
        quant="f32",
        output=output,
        context_length=CONTEXT,
        prefill_chunk=CHUNK,
        activations="float",
        drafter=None if drafter is None else str(drafter),
    )


def read(package: Path, name: str) -> dict:  # type: ignore[type-arg]
    values: dict = json.loads((package / name).read_text())  # type: ignore[type-arg]
    return values


def test_the_digest_of_a_config_is_the_model_s_alone() -> None:
    config = config_of("e2b")
    assert config_digest(config) == config_digest(replace(config, drafter=None))
    assert with_drafter(config, None) is config


def test_packages_of_before_keep_the_digest_of_their_config() -> None:
    """Noted before configs of Gemma 3n and of encoders were read."""
    found = config_digest(Gemma4Config.from_preset("gemma-4-E2B-it"))
    assert found == "sha256:0658da116dee9afd19af28446fe7d40b92a49e3c8be0d4dc416acd4c0a5eee18"
    others = {config_digest(Gemma4Config.from_preset(name)) for name in OTHER_MODELS}
    assert len(others | {found}) == 3


def test_the_drafter_s_weights_are_in_files_that_the_model_s_list_has_not(made: Drafted) -> None:
    lists = [read(made.package, name) for name in (abi.TENSOR_CACHE_FILE, abi.DRAFTER_CACHE_FILE)]
    names = [{r["name"] for s in one["records"] for r in s["records"]} for one in lists]
    files = [{s["dataPath"] for s in one["records"]} for one in lists]
    assert not any(name.startswith("drafter.") for name in names[0])
    assert all(name.startswith("drafter.") for name in names[1])
    assert not files[0] & files[1]
    provenance = read(made.package, abi.PROVENANCE_FILE)
    assert files[0] | files[1] | {abi.DRAFTER_CACHE_FILE} <= provenance["files"].keys()
    assert provenance["build"]["drafter"]["kind"] == "directory"


@pytest.mark.parametrize("part", ["library", "weights"])
def test_parts_of_packages_with_and_without_a_drafter_do_not_mix(
    part: PartialBuild, made: Drafted, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    shutil.copytree(made.package, package)
    asked = replace(request(made, package, drafter=None), only=part)
    with pytest.raises(UsageError, match="a package with a drafter"):
        packages.compile_small(asked)
    other = drafters.write_drafter(
        tmp_path / "other", "e2b", values=drafters.drafter_config("e2b", intermediate_size=32)
    )
    asked = replace(request(made, package, drafter=other.path), only=part)
    with pytest.raises(UsageError, match="with another `drafter`"):
        packages.compile_small(asked)


def test_a_library_alone_needs_no_weights_of_the_drafter(made: Drafted, tmp_path: Path) -> None:
    config = tmp_path / "drafter"
    config.mkdir()
    (config / "config.json").write_text(json.dumps(drafters.drafter_config("e2b")))
    asked = replace(request(made, tmp_path / "package", drafter=config), only="library")
    packages.compile_small(asked)
    provenance = read(tmp_path / "package", abi.PROVENANCE_FILE)
    assert (
        provenance["build"]["drafter"]
        == read(made.package, abi.PROVENANCE_FILE)["build"]["drafter"]
    )


def test_a_drafter_of_another_model_is_refused_before_anything_is_written(
    made: Drafted, tmp_path: Path
) -> None:
    other = drafters.write_drafter(tmp_path / "other", "moe")
    with pytest.raises(ConfigError, match=r"--drafter: .* `backbone_hidden_size`: expected 96"):
        packages.compile_small(request(made, tmp_path / "package", drafter=other.path))
    assert not (tmp_path / "package").exists()


def test_plan_and_report_know_it(made: Drafted, tmp_path: Path) -> None:
    asked = request(made, Path(), drafter=made.drafter.path)
    (library,), *_ = plan_model(asked)
    plan = library.numbers
    assert plan.drafter is not None
    losses, _ = report_model(asked, packages.Silent())
    found = {loss.name for loss in losses if loss.name.startswith("drafter.")}
    assert "drafter.pre_projection" in found
    plain, _ = report_model(request(made, Path(), drafter=None), packages.Silent())
    assert {loss.name for loss in losses} - found == {loss.name for loss in plain}


def digest(drafter: Path | str) -> str:
    """The fingerprint of `tiny` with a drafter."""
    with (
        open_source("tiny", None, weights=True) as source,
        open_drafter(str(drafter), source.config, weights=True) as opened,
    ):
        config = with_drafter(source.config, opened)
        build: Any = SimpleNamespace(
            source=source,
            drafter=opened,
            config=config,
            recipe=RECIPES["q4f16"],
            allow_nonfinite=False,
            calibration=None,
            shard_bytes=None,
            storage=storage_plan(parameter_table(config), RECIPES["q4f16"], None),
        )
        return fingerprint(build)


def test_weights_of_another_drafter_are_converted_anew(tmp_path: Path) -> None:
    shipped = [digest("tiny") for _ in range(2)]
    assert shipped[0] == shipped[1], "each time in another folder"
    folder = tmp_path / "drafter"
    materialize_drafter(folder)
    mine = digest(folder)
    assert mine == digest(folder) != shipped[0]
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert digest(folder) != mine


def test_weights_that_are_read_in_another_way_are_converted_anew(tmp_path: Path) -> None:
    materialize_drafter(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    found = set()
    for bits in (4, 8, 4):
        config["quantization_config"] = {"quant_method": "gptq", "bits": bits}
        (tmp_path / "config.json").write_text(json.dumps(config))
        found.add(digest(tmp_path))
    assert len(found) == 2


def test_weights_of_another_checkout_of_a_version_are_converted_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = digest("tiny")
    monkeypatch.setattr(compilation, "code_digest", lambda: "that rounded in another way")
    assert digest("tiny") != mine


def test_tiny_is_compiled_with_the_drafter_that_ships(tmp_path: Path) -> None:
    package = tmp_path / "package"
    asked = CompileRequest("tiny", "cpu", "q4f16", package, only="weights", drafter="tiny")
    packages.compile_small(asked)
    build = read(package, abi.PROVENANCE_FILE)["build"]
    assert (build["source"]["kind"], build["drafter"]["kind"]) == ("tiny", "tiny")
    asked = replace(asked, output=Path())
    (library,), *_ = plan_model(asked)
    plan = library.numbers
    assert plan.drafter is not None
    shards = read(package, abi.DRAFTER_CACHE_FILE)["records"]
    stored = sum(record["nbytes"] for shard in shards for record in shard["records"])
    assert stored == plan.drafter.weights_bytes
    losses, _ = report_model(asked, packages.Silent())
    assert "drafter.pre_projection" in {loss.name for loss in losses}


@pytest.mark.parametrize(
    "target", slow_unless(lambda target: target == "webgpu", ("webgpu", "metal", "cuda"))
)
def test_every_target_has_kernels_for_tiny_s_drafter(target: str) -> None:
    asked = CompileRequest("tiny", target, "q4f16", Path(), drafter="tiny")
    library = lower_library(asked)
    assert {abi.DRAFT, abi.VERIFY} <= library.calls.keys()


DRAFTER_SHARD = "params_shard_drafter_0.bin"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    asked = CompileRequest("tiny", "cpu", "q4f16", package, only="weights", drafter="tiny")
    packages.compile_small(asked)
    check_files(package, read_provenance(package), Check.ALWAYS)
    return package


def refuse(package: Path, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        check_files(package, read_provenance(package), Check.ALWAYS)


@pytest.mark.parametrize("name", [abi.DRAFTER_CACHE_FILE, DRAFTER_SHARD])
def test_one_bit_of_a_drafter_is_found(name: str, weights: Path) -> None:
    data = bytearray((weights / name).read_bytes())
    data[len(data) // 2] ^= 1
    (weights / name).write_bytes(data)
    refuse(weights, rf"`{name}` of .* is damaged: its sha256")


def test_a_drafter_s_files_are_listed_and_as_large_as_its_tensors(weights: Path) -> None:
    shard = weights / DRAFTER_SHARD
    shard.write_bytes(shard.read_bytes() + b"\0")
    values = read(weights, abi.PROVENANCE_FILE)
    values["files"][DRAFTER_SHARD]["nbytes"] += 1
    write_json(weights / abi.PROVENANCE_FILE, values)
    refuse(weights, rf"`{DRAFTER_SHARD}`: `{abi.DRAFTER_CACHE_FILE}` lists")
    for name in (DRAFTER_SHARD, abi.DRAFTER_CACHE_FILE):
        del values["files"][name]
        write_json(weights / abi.PROVENANCE_FILE, values)
        refuse(weights, f"does not list `{name}`")
