"""Requests within a budget: all sizes against every combination, what is given, what cannot be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from gemma4_compile import abi
from gemma4_compile.compile.fit import fit_model
from gemma4_compile.compile.pipeline import plan_model
from gemma4_compile.compile.request import CompileRequest, compile_request
from gemma4_compile.errors import UsageError
from gemma4_compile.model_spec.component import model_parameters
from gemma4_compile.model_spec.components import COMPONENTS
from gemma4_compile.model_spec.config.gemma4 import PRESETS_DIR, Gemma4Config, preset_names
from gemma4_compile.model_spec.parameters import Role
from gemma4_compile.options.budget import Budget
from gemma4_compile.options.compile import COMMAND
from gemma4_compile.planning.memory_parts import bytes_with_table_on_host, memory_parts
from gemma4_compile.planning.plan import make_plan
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.targets import target_spec
from gemma4_compile.types import JsonObject
from tests import phone_checkpoints
from tests.packages import compile_small

MIB, GIB = 1 << 20, 1 << 30
QUANTS = ("q4f16m", "q4kf16", "q4f16s")
CONTEXTS = (131_072, 65_536, 32_768, 16_384, 8192, 4096, 2048)
CHUNKS = (512, 256, 128, 64)
SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
E2B = "gemma-4-E2B-it"


def asked(*line: str) -> CompileRequest:
    return compile_request(COMMAND.parse([*line, "-o", "no such"]))


def fitted(*line: str) -> tuple[CompileRequest, JsonObject]:
    found = fit_model(asked(*line))
    assert found.fitted is not None
    return found, found.fitted


@cache
def memory_of(preset: str) -> dict[tuple[str, int, int, bool, float], int]:
    """Bytes of every combination for CUDA: weights, and a plan's memory besides them."""
    config, target = Gemma4Config.from_preset(preset), target_spec("cuda")
    longest = config.max_position_embeddings
    contexts = sorted({one for one in CONTEXTS if one <= longest} | {longest})
    table = model_parameters(config, COMPONENTS)
    known, rest = None, {}
    for chunk in CHUNKS:
        plan = make_plan(config, "q4f16", target, 2048, chunk, contexts, recipes=known)
        known = plan.recipes
        for kv in plan.kv:
            rest[kv.context_length, chunk] = kv.total_bytes + plan.activation_bytes
    found = {}
    for quant in QUANTS:
        sizes = dict.fromkeys(Role, 0)
        for stored in storage_plan(table, RECIPES[quant], None):
            sizes[stored.parameter.role] += sum(tensor.nbytes for tensor in stored.tensors)
        rows, experts = sizes[Role.PER_LAYER_EMBEDDING], sizes[Role.EXPERTS]
        shares = SHARES if experts and quant != "q4f16m" else SHARES[:1]
        places = [*product((False, True) if rows else (False,), shares)]
        for ((context, chunk), more), (on_host, share) in product(rest.items(), places):
            off = experts * (config.num_hidden_layers - int(share * config.num_hidden_layers))
            nbytes = sum(sizes.values()) + more - off // config.num_hidden_layers
            if on_host:
                nbytes += chunk * (rows // config.vocab_size_per_layer_input) - rows
            found[quant, context, chunk, on_host, share] = nbytes
    return found


def rank(quant: str, context: int, chunk: int, on_host: bool, share: float) -> tuple[float, ...]:
    """What counts, the most first, as docs/options.md has it; larger is better."""
    quality = -QUANTS.index(quant)
    usual = -QUANTS.index("q4kf16")
    return (
        min(context, 4096),
        int(share),
        min(quality, usual),
        min(context, 8192),
        chunk,
        not on_host,
        share,
        quality,
        context,
    )


@pytest.mark.parametrize("preset", preset_names())
def test_every_size_takes_the_best_of_all_combinations(preset: str) -> None:
    memory = memory_of(preset)
    smallest, largest = min(memory.values()), max(memory.values())
    for share in (0.0, 0.05, 0.3, 1.0):
        room = int(smallest + share * (largest - smallest))
        request = replace(asked(preset, "--target", "cuda"), fit=Budget("", room, "a device"))
        found = fit_model(request)
        best = max(
            (one for one, size in memory.items() if size <= room), key=lambda one: rank(*one)
        )
        assert (found.quant, found.context_length, found.prefill_chunk) == best[:3]
        assert found.fitted is not None
        choices = found.fitted["choices"]
        assert choices.get("per_layer_table", {"value": "gpu"})["value"] == (
            "host" if best[3] else "gpu"
        )
        assert choices.get("experts", {"value": "100%"})["value"] == f"{best[4]:.0%}"
        assert found.fitted["needs_bytes"] == memory[best]


@pytest.mark.parametrize("line", [(), ("--target", "cuda", "--modalities", "text,image")])
def test_the_plan_of_what_was_chosen_is_within_the_budget(line: tuple[str, ...]) -> None:
    found, entry = fitted(E2B, "--fit", "3.2GB", *line)
    plans, *_ = plan_model(found)
    sizes = [sum(memory_parts(plan.numbers).values()) for plan in plans]
    if entry["choices"].get("per_layer_table", {}).get("value") == "host":
        sizes = [bytes_with_table_on_host(plan.numbers) or 0 for plan in plans]
    assert max(sizes) == entry["needs_bytes"] <= entry["budget_bytes"] - entry["margin_bytes"]
    assert entry["budget_bytes"] == 3_200_000_000
    for name, value in entry["choices"].items():
        assert value.get("saves_bytes", 1) > 0, name


def test_what_is_given_stays() -> None:
    line = ("--quant", "q8f16", "--context", "1000", "--prefill-chunk", "100", "--libraries", "f16")
    found, entry = fitted(E2B, "--fit", "8GB", *line)
    assert (found.quant, found.context_length, found.prefill_chunk) == ("q8f16", 1000, 100)
    assert [one.name for one in found.libraries] == ["f16"]
    assert all(step["given"] for step in entry["choices"].values())
    found, entry = fitted(E2B, "--fit", "3GB", "--context", "16384")
    assert (found.context_length, found.quant) == (16_384, "q4f16s")
    given = [name for name, step in entry["choices"].items() if step["given"]]
    assert given == ["context"]


def test_room_makes_no_token_slower() -> None:
    """8 bits halve its rate: they are for whoever asks for them."""
    found, entry = fitted(E2B, "--fit", "200GB")
    assert (found.quant, found.context_length) == ("q4f16m", 131_072)
    assert "instead_of" not in entry["choices"]["recipe"]


def test_a_recipe_file_and_one_library_are_given_too(tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text('{"schemes": {"embed_tokens": "q4f16_1"}}')
    found, entry = fitted(E2B, "--fit", "64GB", "--recipe", str(file))
    assert (found.quant, entry["choices"]["recipe"]["given"]) == ("q4kf16", True)
    found, entry = fitted(E2B, "--fit", "64GB", "--limits", "compat")
    assert (found.limits, "libraries" in entry["choices"]) == ("compat", False)


def test_libraries_of_float32_go_before_the_recipe_or_the_context() -> None:
    every = [one.name for one in asked("gemma-4-26B-A4B-it").libraries]
    found, entry = fitted(
        "gemma-4-26B-A4B-it", "--fit", "discrete GPU, 16 GB", "--prefill-chunk", "512"
    )
    names = [one.name for one in found.libraries]
    assert set(every) - set(names) == {"default", "h200-f32"}
    assert found.quant != "q4f16s"
    assert found.context_length is not None
    assert found.context_length >= 8192
    assert entry["choices"]["libraries"]["instead_of"] == every


def test_a_device_gets_the_libraries_that_it_runs() -> None:
    found, entry = fitted(E2B, "--fit", "phone, 8 GB")
    names = [one.name for one in found.libraries]
    assert "subgroups-4" in names
    assert not {"subgroups", "subgroups-16", "subgroups-8", "h200"} & set(names)
    assert (entry["device"], entry["margin_bytes"]) == ("phone, 8 GB", 0)
    kept, _ = fitted(E2B, "--fit", "phone, 8 GB", "--libraries", "subgroups")
    assert [one.name for one in kept.libraries] == ["subgroups"]


def test_what_fits_nowhere_names_the_smallest_and_by_how_much() -> None:
    with pytest.raises(UsageError, match=r"^--fit 4GB: .* more$") as caught:
        fit_model(asked("gemma-4-31B-it", "--target", "cuda", "--fit", "4GB"))
    smallest = min(memory_of("gemma-4-31B-it").values())
    room = Budget("", 4 * 10**9).room_bytes
    assert f"needs {smallest / GIB:.2f} GiB, {(smallest - room) / GIB:.2f} GiB more" in str(
        caught.value
    )
    assert "q4f16s, context 2,048, prefill chunk 64" in str(caught.value)
    (least,) = re.findall(r"--fit (\d+)MiB would do", str(caught.value.hint))
    line = ("gemma-4-31B-it", "--target", "cuda", "--fit")
    assert fit_model(asked(*line, f"{least}MiB")).context_length == 2048
    with pytest.raises(UsageError):
        fit_model(asked(*line, f"{int(least) - 1}MiB"))


@pytest.mark.slow
def test_towers_and_a_drafter_are_counted_and_named_where_nothing_fits() -> None:
    line = ("tiny", "--target", "cpu", "--context", "256", "--prefill-chunk", "64")
    quant = ("--quant", "q4f16", "--fit", "1GB")
    _, plain = fitted(*line, *quant)
    found, drafted = fitted(*line, *quant, "--drafter", "tiny")
    plans, *_ = plan_model(found)
    drafter = plans[0].numbers.drafter
    assert drafter is not None
    more = drafter.weights_bytes + drafter.activation_bytes
    assert drafted["needs_bytes"] - plain["needs_bytes"] == more > 0
    with pytest.raises(UsageError) as caught:
        fit_model(asked(*line, "--drafter", "tiny", "--fit", "64MiB"))
    assert "no --drafter saves" in str(caught.value.hint)
    with pytest.raises(UsageError) as caught:
        fit_model(asked(E2B, "--modalities", "all", "--fit", "1GB"))
    assert re.search(r"--modalities text saves image .* MiB, audio .* MiB", str(caught.value.hint))


@pytest.mark.slow
def test_what_cannot_be_built_in_any_memory_is_not_called_too_large() -> None:
    with pytest.raises(UsageError, match="--prefill-chunk 2000: one activation needs"):
        fit_model(asked("gemma-4-31B-it", "--prefill-chunk", "2000", "--fit", "80GB"))


def test_pictures_that_no_chunk_may_cut_have_one_of_their_size() -> None:
    line = ("gemma-4-31B-it", "--modalities", "text,image", "--image-tokens", "1120")
    found, _ = fitted(*line, "--libraries", "f16", "--fit", "64GB")
    assert found.prefill_chunk == 1120


def test_weights_that_were_trained_for_4_bits_take_4_bits() -> None:
    request = replace(asked("gemma-4-E2B-it"), fit=Budget("64GB", 64 * GIB))
    found = fit_model(request, "google/gemma-4-E2B-it-qat-q4_0-unquantized")
    assert found.quant == "q4f16s"
    assert found.fitted is not None
    assert "instead_of" not in found.fitted["choices"]["recipe"]


def test_the_same_budget_chooses_the_same_and_none_changes_nothing() -> None:
    line = (E2B, "--fit", "5GB", "--target", "cuda")
    assert fit_model(asked(*line)) == fit_model(asked(*line))
    plain = asked(E2B)
    assert fit_model(plain) is plain


@pytest.mark.package
def test_provenance_says_why_and_a_part_of_the_package_keeps_to_it(tmp_path: Path) -> None:
    line = ("tiny", "--target", "cpu", "--fit", "66.75MiB")
    found = fit_model(asked(*line))
    package = tmp_path / "package"
    compile_small(replace(found, output=package, only="weights"))
    build = json.loads((package / abi.PROVENANCE_FILE).read_text())["build"]
    assert build["fit"] == found.fitted
    parts = build["memory"]
    assert sum(parts.values()) == build["fit"]["needs_bytes"] <= 3 << 20
    assert build["fit"]["choices"]["prefill_chunk"]["instead_of"] == 512
    beside = asked("tiny", "--target", "cpu", "--fit", "1GB")
    again = fit_model(replace(beside, output=package, only="library"))
    assert again.quant == found.quant != fit_model(beside).quant
    assert again.prefill_chunk == found.prefill_chunk != 512
    assert again.fitted is not None
    assert again.fitted["choices"]["recipe"] == {"value": found.quant, "given": True}


def test_a_models_warnings_are_left_to_its_compilation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((PRESETS_DIR / f"{E2B}.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "unheard_of": 1}), "utf-8")
    found = fit_model(asked(str(tmp_path), "--target", "cuda", "--fit", "8GB"))
    assert capsys.readouterr().err == ""
    plan_model(found)
    assert "`unheard_of`" in capsys.readouterr().err


def test_a_phone_checkpoint_is_planned_by_its_config_as_without_a_budget() -> None:
    """The bits of the released one are assumed, and the recipe that was given stays."""
    line = (E2B, "--quant", "mobile", "--target", "cuda")
    found, entry = fitted(*line, "--fit", "3GiB")
    assert found.quant == "mobile"
    plans, *_ = plan_model(asked(*line, "--context", str(found.context_length)))
    assert 0 < entry["needs_bytes"] <= 3 * GIB
    assert plans[0].numbers.recipe.name == "mobile"
    assert entry["choices"]["recipe"]["given"] is True
    own, *_ = plan_model(asked(E2B, "--target", "cuda"))
    read, whole = (plan.numbers.checkpoint_bytes for plan in (plans[0], own[0]))
    assert read < whole / 4, "integers of 2 and 4 bits are read, not two bytes a weight"
    assert read == plans[0].numbers.recipe.weights_bytes


def test_the_recipe_of_a_phone_checkpoint_is_not_said_to_be_given(tmp_path: Path) -> None:
    phone_checkpoints.write(tmp_path)
    _, entry = fitted(str(tmp_path), "--target", "cpu", "--fit", "3GiB")
    assert entry["choices"]["recipe"] == {"value": "mobile", "given": False}
