"""Where a request is resolved: libraries, the sizes of a model, and what is there already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemma4_compile.compile.request import CompileRequest
from gemma4_compile.compile.resolve import Sizes, choose, package_targets, sizes_of
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import ALL_MODALITIES
from gemma4_compile.package.artifacts import Provenance
from gemma4_compile.targets.libraries import LIBRARIES
from gemma4_compile.targets.spec import WORDS

REQUEST = CompileRequest("gemma-4-E2B-it", "webgpu", "q4f16", Path("no such"))


def test_the_main_library_is_the_first() -> None:
    forms = (LIBRARIES["h200-f32"], LIBRARIES["default"])
    main = choose(replace(REQUEST, libraries=forms)).main
    assert (main.name, main.target.limits, main.target.activations) == ("h200-f32", "h200", "int8")
    assert (main.recipe.activation_dtype, main.float16) == ("float32", WORDS)


def test_one_library_is_named_for_what_it_is_compiled_for() -> None:
    assert choose(replace(REQUEST, limits="compat")).main.name == "compat"
    assert choose(replace(REQUEST, quant="f32")).main.float16 is None


def test_sizes_are_those_that_are_asked_for_or_fit_the_model() -> None:
    config = Gemma4Config.from_preset("gemma-4-E2B-it")
    assert sizes_of(REQUEST, config) == Sizes(8192, 512, 280)
    assert sizes_of(replace(REQUEST, context_length=100), config) == Sizes(100, 100, 280)
    small = replace(config, max_position_embeddings=300)
    assert sizes_of(REQUEST, small) == Sizes(300, 300, 280)
    for asked, said in (
        (
            replace(REQUEST, context_length=301),
            "--context: expected 1 to 300 for this model, found 301",
        ),
        (
            replace(REQUEST, context_length=0),
            "--context: expected 1 to 300 for this model, found 0",
        ),
        (replace(REQUEST, prefill_chunk=301), "--prefill-chunk: expected 1 to 300, found 301"),
    ):
        with pytest.raises(UsageError, match=said) as caught:
            sizes_of(asked, small)
        assert caught.value.hint == "leave it out for 300"


def test_pictures_have_a_budget_of_the_processor() -> None:
    sees = Gemma4Config.from_preset("gemma-4-E2B-it", ALL_MODALITIES)
    assert sizes_of(REQUEST, sees).image_tokens == 280
    assert sizes_of(replace(REQUEST, image_tokens=1120), sees).image_tokens == 1120
    with pytest.raises(UsageError, match="expected one of 70, 140, 280, 560, 1120, found 300"):
        sizes_of(replace(REQUEST, image_tokens=300), sees)
    with pytest.raises(UsageError, match="unknown shape `round`"):
        sizes_of(replace(REQUEST, image_shape="round"), sees)


def test_a_package_of_text_alone_has_no_pictures_to_budget() -> None:
    blind = Gemma4Config.from_preset("gemma-4-E2B-it")
    assert sizes_of(REQUEST, blind).image_tokens == 280
    for changes in ({"image_tokens": 560}, {"image_shape": "square"}):
        with pytest.raises(UsageError, match=r"--image-.*: this package takes no pictures"):
            sizes_of(replace(REQUEST, **changes), blind)


@pytest.mark.parametrize("build", [{}, {"target": "abacus"}, {"target": "webgpu", "limits": "no"}])
def test_targets_of_a_package_are_known_ones(build: dict[str, object]) -> None:
    with pytest.raises(ArtifactError, match=r"`provenance\.json`: field `(target|limits)`"):
        package_targets(Provenance(None, build, {}))


def test_a_text_of_an_encoder_is_read_in_one_call() -> None:
    config = Gemma4Config.from_preset("embeddinggemma-2")
    usual = CompileRequest("embeddinggemma-2", "cpu", "q4f16", Path("out"))
    assert sizes_of(usual, config) == Sizes(2048, 2048, 280)
    longer = replace(usual, context_length=8192)
    assert sizes_of(longer, config) == Sizes(8192, 8192, 280)
    assert sizes_of(replace(longer, prefill_chunk=8192), config) == Sizes(8192, 8192, 280)
    with pytest.raises(UsageError, match="reads a text in one call"):
        sizes_of(replace(longer, prefill_chunk=512), config)
    with pytest.raises(UsageError, match="expected 1 to 16384 for this model"):
        sizes_of(replace(usual, context_length=16385), config)
    with pytest.raises(UsageError, match="makes no tokens to draft"):
        sizes_of(replace(usual, drafter="tiny"), config)
