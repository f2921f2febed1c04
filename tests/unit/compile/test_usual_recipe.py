"""The recipe of a command line that names none: by weights where they are here, else by a name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import gguf
import pytest
import torch
from peft import LoraConfig, get_peft_model

from gemma4_compile.checkpoint import hub
from gemma4_compile.cli import compile as cli
from gemma4_compile.compile.fit import fit_model
from gemma4_compile.compile.pipeline import plan_model
from gemma4_compile.compile.request import CompileRequest, compile_request
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.quantization.schemes import SCHEMES
from tests import gguf_files, hf, models, packages

KIND = "e2b"
TRAINED = "google/gemma-4-E2B-it-qat-q4_0-unquantized"
MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Weights = Mapping[str, models.Float32Array]


def rounded(weights: Weights, share: float = 1.0) -> Weights:
    """Weights of which the first layers' matrices are on 16 levels a group, as far as they can."""
    layers, scheme = models.ALL[KIND]["num_hidden_layers"], SCHEMES["q4f16_1"]
    found = dict(weights)
    for name, values in weights.items():
        number = next((int(part) for part in name.split(".") if part.isdigit()), layers)
        if number < share * layers and values.ndim == 2 and values.shape[1] % 32 == 0:
            found[name] = scheme.load(scheme.store(values, name=name, first_row=0))
    return found


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, text = tmp_path_factory.mktemp("checkpoints"), models.ALL[KIND]
    weights = models.random_weights(text, dtype="bfloat16")
    for name, found in {
        "plain": weights,
        "trained": rounded(weights),
        "some": rounded(weights, 0.3),
    }.items():
        models.write_checkpoint(folder / name, text, weights=found, dtype="bfloat16")
    return {name: folder / name for name in ("plain", "trained", "some")}


def asked(*line: str) -> CompileRequest:
    return compile_request(COMMAND.parse(["--target", "cpu", "-o", "no such", *line]))


def found(*line: str, known_as: str | None = None) -> tuple[str, str | None]:
    """The recipe, and why it was chosen, of a plan."""
    *_, request = plan_model(asked(*line), known_as)
    return request.quant, None if request.usual is None else request.usual.why


def test_weights_decide_where_they_are_here(checkpoints: Mapping[str, Path]) -> None:
    expected = {"plain": "q4kf16", "trained": "q4f16", "some": "q4kf16"}
    for name, recipe in expected.items():
        for partial in ((), ("--only", "library"), ("--only", "weights")):
            quant, why = found(str(checkpoints[name]), *partial)
            assert quant == recipe, (name, partial)
            assert why is not None
            assert "sampled groups" in why


def test_what_is_given_is_kept(checkpoints: Mapping[str, Path]) -> None:
    for name, quant in (("plain", "q4f16"), ("trained", "q4kf16"), ("trained", "f32")):
        assert found(str(checkpoints[name]), "--quant", quant) == (quant, None)


def test_an_adapter_takes_the_weights_off_their_levels(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    text = models.ALL[KIND]
    model = hf.load(text, models.random_weights(text), "float32")
    wrapped = get_peft_model(model, LoraConfig(r=4, target_modules=MATRICES))
    generator = torch.Generator().manual_seed(0)
    for tensor in wrapped.parameters():
        if tensor.requires_grad:
            tensor.data += 0.01 * torch.randn(tensor.shape, generator=generator)
    wrapped.save_pretrained(str(tmp_path))
    trained = str(checkpoints["trained"])
    assert found(trained)[0] == "q4f16"
    assert found(trained, "--adapter", str(tmp_path))[0] == "q4kf16"


@pytest.mark.parametrize(("kind", "recipe"), [("Q4_0", "q4f16"), ("Q8_0", "q4kf16")])
def test_a_gguf_file_by_its_weights(kind: str, recipe: str, tmp_path: Path) -> None:
    type_of = gguf.GGMLQuantizationType
    _, path = gguf_files.made(
        tmp_path,
        models.ALL[KIND],
        lambda _, shape: type_of[kind] if len(shape) == 2 and shape[-1] % 32 == 0 else type_of.F32,
    )
    assert found(str(path))[0] == recipe


def test_a_name_decides_where_weights_are_not_here(
    checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    assert found("gemma-4-E2B-it") == (
        "q4kf16",
        "by its name the model was not trained for 4 bits",
    )
    quant, why = found("gemma-4-E2B-it", known_as=TRAINED)
    assert (quant, why) == ("q4f16", "by its name the model was trained for these 4 bits")
    assert asked("somebody/gemma-4-E2B-it-qat-q4_0-unquantized").quant == "q4f16"
    bare = tmp_path / "gemma-4-E2B-it-qat-q4_0-unquantized"
    bare.mkdir()
    (bare / "config.json").write_bytes((checkpoints["plain"] / "config.json").read_bytes())
    assert found(str(bare))[0] == "q4f16"
    (bare / "model.safetensors").write_bytes(b"damaged")
    assert found(str(bare))[0] == "q4f16", "that is said where weights are wanted"


def test_models_without_such_weights_keep_theirs() -> None:
    quant, why = found("tiny")
    assert (quant, why) == ("q4f16", "`tiny` was trained with its weights rounded in this way")
    assert found("embeddinggemma-2") == ("q4f16", "that of encoders")


def test_a_budget_chooses_around_it(checkpoints: Mapping[str, Path]) -> None:
    """What 4 bits hold exactly is held so, and no more is taken."""
    for name, expected in (("plain", "q4f16m"), ("trained", "q4f16s")):
        assert fit_model(asked(str(checkpoints[name]), "--fit", "1GB")).quant == expected
    given = asked(str(checkpoints["trained"]), "--fit", "1GB", "--quant", "q4kf16")
    assert fit_model(given).quant == "q4kf16"


def test_a_recipe_file_is_on_it(checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({"schemes": {"embed_tokens": "q8f16_1"}}), "utf-8")
    for name, quant in (("plain", "q4kf16"), ("trained", "q4f16")):
        assert found(str(checkpoints[name]), "--recipe", str(file))[0] == quant


def test_parts_of_a_package_agree_and_the_summary_says_why(
    checkpoints: Mapping[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where other weights have come to the checkpoint since."""
    monkeypatch.setattr(cli, "compile_model", packages.compile_small)
    rest = ["--target", "cpu", "--context", "32", "--prefill-chunk", "8", "-o"]
    package = str(tmp_path / "package")

    def build() -> dict[str, object]:
        values = json.loads((tmp_path / "package/provenance.json").read_text("utf-8"))
        return dict(values["build"])

    assert cli.main([str(checkpoints["plain"]), *rest, package, "--only", "weights"]) == 0
    assert build()["recipe"] == "q4kf16"
    captured = capsys.readouterr()
    reason = "q4kf16: 100% of the sampled groups of weights lie on no levels of 4 bits"
    assert f"recipe:             {reason}\n" in captured.out
    assert f"recipe {reason}\n" in captured.err
    given = ["--only", "library", "--quant", "q4f16"]
    assert cli.main([str(checkpoints["plain"]), *rest, package, *given]) == 2
    assert "with another `recipe` (q4kf16, asked for: q4f16)" in capsys.readouterr().err
    kept = "q4kf16", "that of the package that is there"
    assert found(str(checkpoints["trained"]), "--only", "library", "-o", package) == kept


def test_a_package_that_is_there_has_the_libraries_of_its_recipe(
    checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of weights without integers those that multiply them are not made, as where it is named."""
    monkeypatch.setattr(cli, "compile_model", packages.compile_small)
    line = [str(checkpoints["plain"]), "--target", "webgpu", "-o", str(tmp_path / "package")]
    assert cli.main([*line, "--quant", "f32", "--only", "weights"]) == 0
    library = [*line, "--only", "library"]
    named = compile_request(COMMAND.parse([*library, "--quant", "f32"]))
    *_, request = plan_model(compile_request(COMMAND.parse(library)))
    assert (request.quant, request.libraries) == ("f32", named.libraries)
    fitted = fit_model(compile_request(COMMAND.parse([*library, "--fit", "8GB"])))
    assert (fitted.quant, fitted.libraries) == ("f32", named.libraries)


def test_an_adapter_that_is_not_here_counts_and_is_not_downloaded(
    checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))

    def fetch(adapter: str, revision: str | None, *, weights: bool) -> Path:
        assert not weights, "a plan reads configs alone"
        return tmp_path

    monkeypatch.setattr(hub, "fetch_adapter", fetch)
    why = "weights that an adapter is merged into lie on no levels of 4 bits"
    for model in (str(checkpoints["trained"]), "gemma-4-E2B-it"):
        line = (model, "--adapter", "somebody/adapter")
        assert found(*line, known_as=TRAINED) == ("q4kf16", why)
        assert fit_model(asked(*line, "--fit", "64GB"), TRAINED).quant == "q4f16m"
