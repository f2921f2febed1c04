"""Cards of published packages: the hub's metadata, and what a person reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from huggingface_hub import ModelCard

from gemma4_compile.errors import ArtifactError
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.verification.model_card import MARK, Published, card_picture, model_card
from gemma4_compile.verification.weights_licence import WeightsLicence

HUB = {"kind": "hub", "model": "google/gemma-4-E2B-it", "revision": "0" * 40}
NUMERICS = {"whole": {"logits": {"kl_mean": 0.04321, "top1": 0.912}}}


def published(*files: str, **build: Any) -> Published:
    values = {
        "schema": "gemma4_compile.package",
        "schema_version": 1,
        "library": files[0],
        "build": {"target": "cpu", "recipe": "q4f16", "source": HUB, **build},
        "files": {name: {"nbytes": 10**9, "sha256": "0" * 64} for name in files},
    }
    provenance = Provenance.from_json(values)
    return Published("me/e2b", provenance, WeightsLicence("apache-2.0", "text"), NUMERICS)


def metadata(card: str) -> dict[str, Any]:
    """A card's YAML, as the hub's own library reads it."""
    data = ModelCard(card).data
    values: dict[str, Any] = data.to_dict()  # type: ignore[no-untyped-call]
    return values


def test_the_metadata_is_what_the_hub_reads() -> None:
    data = metadata(model_card(published("model.so")))
    assert data["license"] == "apache-2.0"
    assert data["base_model"] == [HUB["model"]]
    assert data["base_model_relation"] == "quantized"
    assert data["library_name"] == "gemma4-compile"
    assert data["pipeline_tag"] == "text-generation"
    assert {"gemma4", "cpu", "q4f16"} <= set(data["tags"])


@pytest.mark.parametrize(
    ("modalities", "task"),
    [(["text", "image"], "image-text-to-text"), (["text", "image", "audio"], "any-to-any")],
)
def test_the_task_is_by_what_the_package_takes(modalities: list[str], task: str) -> None:
    data = metadata(model_card(published("model.so", modalities=modalities)))
    assert data["pipeline_tag"] == task


def test_a_licence_of_no_known_name_is_linked() -> None:
    other = replace(published("model.so"), licence=WeightsLicence("other", "terms"))
    data = metadata(model_card(other))
    assert (data["license"], data["license_link"]) == ("other", "WEIGHTS_LICENSE")


def test_a_model_of_no_hub_names_no_base() -> None:
    text = model_card(published("model.so", source={"kind": "directory"}))
    assert "base_model" not in metadata(text)


def test_a_person_reads_what_it_is_and_how_it_runs() -> None:
    needs = {"weights_bytes": 3 << 30, "kv_full_bytes": 1 << 29}
    native = model_card(published("model.so", requirements=needs))
    assert MARK in native
    assert "0.0432 nats, top-1 agreement 91.2%" in native
    assert "3.50 GiB" in native
    assert "gemma4-chat me/e2b" in native
    assert "chooseLibrary" not in native
    web = model_card(published("model.wasm", target="webgpu"))
    assert "https://huggingface.co/me/e2b/resolve/main/" in web
    assert "gemma4-chat" not in web


def test_a_package_that_was_not_measured_claims_nothing() -> None:
    assert "KL" not in model_card(replace(published("model.so"), numerics=None))


def test_an_encoders_vectors_are_told() -> None:
    numerics = {"whole": {"cosine_mean": 0.99876, "max_error": 0.1}}
    card = model_card(replace(published("model.so"), numerics=numerics))
    assert "| mean cosine with the checkpoint's vectors in float32 | 0.99876 |" in card


def test_what_was_merged_calibrated_or_added_is_named() -> None:
    lora = {"kind": "hub", "model": "someone/lora", "revision": "1" * 40}
    source = {**HUB, "adapters": [lora, {"kind": "directory"}]}
    drafter = {"kind": "hub", "model": "google/drafter", "revision": "2" * 40}
    text = model_card(published("model.so", source=source, calibration={}, drafter=drafter))
    assert metadata(text)["base_model"] == [HUB["model"], "someone/lora"]
    assert "adapters [someone/lora](https://huggingface.co/someone/lora) at commit" in text
    assert "`directory` merged into it" in text
    assert "chosen by what the model computes" in text
    assert "A drafter, [google/drafter]" in text
    plain = model_card(published("model.so"))
    assert not any(word in plain for word in ("adapter", "chosen by", "drafter"))


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("records", {"source": {**HUB, "adapters": [1]}}),
        ("adapters", {"source": {**HUB, "adapters": 7}}),
        ("source", {"source": "tiny"}),
        ("model", {"source": {"kind": "hub"}}),
        ("model", {"source": {**HUB, "model": 'a/b"\n---\nevil: yes'}}),
        ("revision", {"source": {**HUB, "revision": "1`\n# Title"}}),
        ("kind", {"source": {"kind": "<script>"}}),
        ("recipe", {"recipe": "x|y\n# Title"}),
        ("modalities", {"modalities": "image"}),
        ("modalities", {"modalities": ["text", "a|b"]}),
        ("versions", {"versions": []}),
        ("drafter", {"drafter": "x"}),
    ],
)
def test_nothing_of_a_damaged_build_is_written(name: str, build: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match=f"field `{name}` is damaged"):
        model_card(published("model.so", **build))


MEMORY = {"decoder": 3 << 30, "per_layer_embedding": 1 << 30, "kv": 1 << 29}


def test_memory_is_shown_by_part_as_a_picture_with_words_and_as_a_table() -> None:
    fit = {"budget_bytes": 5 << 30, "margin_bytes": 1 << 29, "host_bytes": {}}
    with_memory = published("model.so", memory=MEMORY, fit=fit)
    text = model_card(with_memory)
    assert "![Memory of the device: 4.50 GiB of 4.50 GiB in all; layers of the text" in text
    assert "](memory.svg)" in text
    assert "| per-layer embedding table | 1.00 GiB |" in text
    picture = card_picture(with_memory)
    assert picture is not None
    assert "4.50 GiB of 4.50 GiB in all" in picture
    assert "memory.svg" not in model_card(replace(with_memory, has_picture=False))


def test_what_lies_on_the_host_is_shown_apart() -> None:
    fit = {"budget_bytes": 5 << 30, "margin_bytes": 0, "host_bytes": {"per_layer_embedding": 9}}
    text = model_card(published("model.so", memory=MEMORY, fit=fit))
    assert "| per-layer embedding table, on the host | 0.0 MiB |" in text


def test_a_package_of_an_earlier_version_has_no_picture() -> None:
    old = published("model.so")
    assert card_picture(old) is None
    assert "memory.svg" not in model_card(old)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("memory", {"memory": []}),
        ("memory", {"memory": {"</svg>": 1}}),
        ("memory", {"memory": {"kv": "1"}}),
        ("memory", {"memory": {"kv": -1}}),
        ("fit", {"memory": MEMORY, "fit": 1}),
        ("budget_bytes", {"memory": MEMORY, "fit": {"budget_bytes": "<b>"}}),
        ("host_bytes", {"memory": MEMORY, "fit": {"host_bytes": {"kv": 1 << 30}}}),
    ],
)
def test_no_picture_is_drawn_of_damaged_numbers(name: str, build: dict[str, Any]) -> None:
    with pytest.raises(ArtifactError, match=f"field `{name}` is damaged"):
        card_picture(published("model.so", **build))


def test_an_encoder_is_run_by_what_embeds() -> None:
    card = model_card(published("model.so", embedding={"dimensions": 768}))
    assert metadata(card)["pipeline_tag"] == "feature-extraction"
    assert "Embedder.open" in card
    assert "/v1/embeddings" in card
    assert "gemma4-chat" not in card
