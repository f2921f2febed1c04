"""The entry `build` of a package's provenance, as far as verification goes by it: checked here.

Somebody may have written the file by hand: what would make a tool fail later is named by its field
before anything is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gemma4_compile import abi
from gemma4_compile.media.settings import MEDIA, MediaSettings, media_settings
from gemma4_compile.media.sizes import BUDGETS, DEFAULT_BUDGET
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality
from gemma4_compile.package.artifacts import Build, ChatConfig
from gemma4_compile.package.fields import Fields
from gemma4_compile.package.interface import DEVICE, DRAFTER
from gemma4_compile.package.media import settings_of
from gemma4_compile.package.partial_build import FIT, MODALITIES, NONFINITE
from gemma4_compile.quantization.recipe_file import MAX_PATTERN_LETTERS, MAX_PATTERNS
from gemma4_compile.quantization.schemes import NAMED, SCHEMES
from gemma4_compile.targets import TARGETS, target_spec
from gemma4_compile.targets.spec import ACTIVATIONS, NATIVE, WORDS

_FIELDS: Mapping[str, type] = {
    **dict.fromkeys(("source", DRAFTER), dict),
    **dict.fromkeys(("target", "limits", "recipe", "activations"), str),
    **dict.fromkeys(("context_length", "prefill_chunk"), int),
    **dict.fromkeys(("suppressed_tokens", "overrides", MODALITIES), list),
}
"""What is read, with its type."""
FLOAT16 = "float16"  # how the main library reads float16 weights; native where it is not there
_ABSENT: Mapping[str, object] = {
    DRAFTER: {"kind": "", "config": ""},
    "overrides": [],
    MODALITIES: ["text"],
}


def reads_words(build: Build) -> bool:
    """Return whether the main library reads float16 weights as words, and computes in float32."""
    return bool(build.get(FLOAT16) == WORDS)


def check_build(given: Build) -> None:
    """ArtifactError names a field that is none that a compilation writes."""
    build = {**_ABSENT, **given}
    read = Fields(build, abi.PROVENANCE_FILE)
    for name, kind in _FIELDS.items():
        read.get(name, kind)
    for name, is_right in _conditions(build):
        if not is_right:
            raise read.damaged(name)
    media_settings(build)


def check_fits(build: Build, config: Gemma4Config, chat: ChatConfig) -> None:
    """ArtifactError names a field that does not go with the checkpoint or the package's files."""
    for name, is_right in (
        ("context_length", build["context_length"] == chat.context_window_size),
        ("prefill_chunk", build["prefill_chunk"] == chat.prefill_chunk_size),
        ("suppressed_tokens", all(each < config.vocab_size for each in build["suppressed_tokens"])),
        (MEDIA, _fits_media(media_settings(build), config)),
    ):
        if not is_right:
            raise Fields(build, abi.PROVENANCE_FILE).damaged(name)


def _conditions(build: Build) -> Iterator[tuple[str, bool]]:
    """Fields, each with whether its value is one that a compilation writes."""
    target, modalities, drafter = build["target"], build[MODALITIES], build[DRAFTER]
    yield "target", target in TARGETS
    yield "limits", build["limits"] in TARGETS[target].limits
    device = target_spec(target, build["limits"]).device
    yield DEVICE, build.get(DEVICE, target) == device
    yield "recipe", build["recipe"] in NAMED
    yield "activations", build["activations"] in ACTIVATIONS
    yield FLOAT16, build.get(FLOAT16, NATIVE) in (NATIVE, WORDS)
    kinds = [kind.value for kind in Modality]
    yield MODALITIES, all(name in kinds for name in modalities)
    yield MODALITIES, "text" in modalities and len(set(modalities)) == len(modalities)
    yield "overrides", len(build["overrides"]) <= MAX_PATTERNS
    yield "overrides", all(map(_is_override, build["overrides"]))
    yield (
        "suppressed_tokens",
        all(type(each) is int and each >= 0 for each in build["suppressed_tokens"]),
    )
    yield FIT, isinstance(build.get(FIT), Mapping | None)
    yield NONFINITE, isinstance(build.get(NONFINITE), Mapping | None)
    yield "source", isinstance(build["source"].get("config"), str)
    named = ("kind", "config", *(("model", "revision") if "model" in drafter else ()))
    yield DRAFTER, all(isinstance(drafter.get(name), str) for name in named)


def _fits_media(found: MediaSettings, config: Gemma4Config) -> bool:
    """Return whether a compilation of this config writes these settings."""
    image = found.image
    if (image is None) != (config.vision is None):
        return False
    if image is None:
        return found == settings_of(config, DEFAULT_BUDGET)
    budget = image.max_budget
    return budget in BUDGETS and found == settings_of(config, budget, image.client_shape)


def _is_override(pair: object) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    pattern, scheme = pair
    is_pattern = isinstance(pattern, str) and len(pattern) <= MAX_PATTERN_LETTERS
    return is_pattern and isinstance(scheme, str) and scheme in SCHEMES
