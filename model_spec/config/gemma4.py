"""Gemma4Config: the checkpoint's `config.json` as frozen, checked fields.

The only place where the released sizes differ: no later stage asks for a model's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gemma4_compile.errors import ConfigError
from gemma4_compile.model_spec.config.audio import AnyAudioConfig, read_audio
from gemma4_compile.model_spec.config.drafter import DrafterConfig
from gemma4_compile.model_spec.config.embedding import (
    EmbeddingConfig,
    read_embedding,
    read_encoder,
)
from gemma4_compile.model_spec.config.fields import ConfigFields
from gemma4_compile.model_spec.config.gemma3n import Gemma3nConfig, read_gemma3n
from gemma4_compile.model_spec.config.keys import (
    IGNORED_KEYS,
    IGNORED_TOP_KEYS,
    TEXT_DEFAULTS,
    TOP_DEFAULTS,
)
from gemma4_compile.model_spec.config.text import TextConfig, read_text
from gemma4_compile.model_spec.config.variants import (
    ENCODERS,
    GEMMA3N_TEXT,
    TEXT_TYPES,
    check_pad,
    refuse_variants,
    unsupported_type,
)
from gemma4_compile.model_spec.config.vision import AnyVisionConfig, read_vision
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality

PRESETS_DIR = Path(__file__).parents[1] / "presets"
ENCODERS_FOLDER = "encoders"  # of the presets

_SHOWN_LETTERS = 40
_SECTIONS = {Modality.IMAGE: "vision_config", Modality.AUDIO: "audio_config"}


@dataclass(frozen=True)
class Gemma4Config(TextConfig):
    """The text decoder, and the sections of the other inputs that a package takes.

    Attributes
    ----------
    vision, audio : None where a package takes no pictures, no sounds
    drafter : of a checkpoint of its own; None where a package has none
    embedding : of an encoder, which makes embeddings and no replies; None for a decoder
    gemma3n : what its decoder has besides; None for Gemma 4's
    """

    vision: AnyVisionConfig | None = None
    audio: AnyAudioConfig | None = None
    drafter: DrafterConfig | None = None
    embedding: EmbeddingConfig | None = None
    gemma3n: Gemma3nConfig | None = None

    @property
    def modalities(self) -> frozenset[Modality]:
        """Inputs of a package of this config."""
        given = {Modality.IMAGE: self.vision, Modality.AUDIO: self.audio}
        return TEXT_ONLY | {modality for modality, section in given.items() if section is not None}

    @property
    def whole_images(self) -> bool:
        """Return whether the rows of a picture see each other, so that no chunk may cut it."""
        return self.bidirectional_images and self.vision is not None

    @classmethod
    def from_dict(
        cls,
        values: Mapping[str, object],
        unknown: Callable[[list[str]], None] = lambda names: None,
        modalities: Collection[Modality] | None = TEXT_ONLY,
    ) -> Gemma4Config:
        """Read a parsed `config.json`: the hub's form, or transformers 5.24's `per_layer_config`.

        What is not given has transformers' default.

        Parameters
        ----------
        unknown : is given the keys that neither we nor transformers know, if there are any
        modalities : inputs whose sections are read; None for all that there are

        Raises
        ------
        ConfigError
            For an impossible value (by name), or an unsupported variant.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"config.json: expected a JSON object, found {type(values).__name__}")
        top = ConfigFields(values, "", TOP_DEFAULTS)
        model_type = top.get("model_type")
        if not isinstance(model_type, str):
            raise unsupported_type(model_type)
        text_type = TEXT_TYPES.get(model_type, model_type)
        if model_type in TEXT_TYPES:
            text = top.fields("text_config", TEXT_DEFAULTS[text_type])
            named = text.get("model_type")
            if named in TEXT_TYPES.values():
                text.fixed("model_type", text_type)
            elif named is not None:  # transformers reads the section whatever it says
                unknown([f"{text.key('model_type')}: {str(named)[:_SHOWN_LETTERS]}"])
        elif model_type in TEXT_TYPES.values():
            top = text = ConfigFields(values, "", TEXT_DEFAULTS[model_type])
            text.get("model_type")
            if isinstance(values.get("text_config"), Mapping) and values["text_config"]:
                whole = next(one for one, of in TEXT_TYPES.items() if of == text_type)
                raise ConfigError(
                    f"config key `model_type`: `{model_type}` has no sections, found `text_config`",
                    hint=f"set it to `{whole}`, whose text is in `text_config`",
                )
        else:
            raise unsupported_type(model_type)
        refuse_variants(top, text)
        if text_type in ENCODERS:
            config = cls._of_encoder(top, text, modalities)
            _tell_unknown(top, text, unknown)
            return config
        if text_type == GEMMA3N_TEXT:
            section, own = read_gemma3n(top, text, modalities)
            _tell_unknown(top, text, unknown)
            return cls(**vars(section), gemma3n=own)
        config = cls(**vars(read_text(top, text)))
        names = text.unknown(IGNORED_KEYS)
        wanted = modalities
        if wanted is None:
            wanted = {kind for kind, name in _SECTIONS.items() if top.get(name) is not None}
        if config.rounds_activations and set(wanted) - set(TEXT_ONLY):
            raise ConfigError(
                "config key `quantization_config`: pictures and sounds of checkpoints for phones, "
                "whose activations are rounded, are not compiled yet: their towers round, too",
                hint="leave `image` and `audio` out of --modalities",
            )
        if Modality.IMAGE in wanted:
            config = replace(config, vision=read_vision(top, config.vocab_size, names))
        if Modality.AUDIO in wanted:
            config = replace(config, audio=read_audio(top, config.vocab_size, names))
        _check_media_tokens(config)
        has_media = config.vision is not None or config.audio is not None
        check_pad(config.pad_token_id, is_read=has_media and config.hidden_size_per_layer_input > 0)
        if top is not text:
            names += top.unknown(IGNORED_TOP_KEYS)
        if names:
            unknown(names)
        return config

    @classmethod
    def _of_encoder(
        cls, top: ConfigFields, text: ConfigFields, modalities: Collection[Modality] | None
    ) -> Gemma4Config:
        encoder = read_encoder(top, text)
        embedding = read_embedding(top, text, encoder.vocab_size, modalities)
        return cls(**vars(encoder), embedding=embedding)

    @classmethod
    def from_preset(
        cls, name: str, modalities: Collection[Modality] | None = TEXT_ONLY
    ) -> Gemma4Config:
        """Read the config of a released size, by the last part of its hub id (`gemma-4-E2B-it`)."""
        values = json.loads(preset_file(name).read_text("utf-8"))
        return cls.from_dict(values, modalities=modalities)


def preset_names() -> tuple[str, ...]:
    """Names of the configs of decoders that ship with the package."""
    return tuple(sorted(path.stem for path in PRESETS_DIR.glob("*.json")))


def encoder_presets() -> tuple[str, ...]:
    """Names of the configs of encoders that ship with the package."""
    return tuple(sorted(path.stem for path in (PRESETS_DIR / ENCODERS_FOLDER).glob("*.json")))


def preset_file(name: str) -> Path:
    """The file of a preset; ConfigError if there is none."""
    if name in preset_names():
        return PRESETS_DIR / f"{name}.json"
    if name in encoder_presets():
        return PRESETS_DIR / ENCODERS_FOLDER / f"{name}.json"
    known = ", ".join((*preset_names(), *encoder_presets()))
    raise ConfigError(f"there is no preset `{name}`", hint=f"presets: {known}")


def _tell_unknown(
    top: ConfigFields, text: ConfigFields, unknown: Callable[[list[str]], None]
) -> None:
    """Name the keys that nobody knows."""
    names = text.unknown(IGNORED_KEYS)
    if top is not text:
        names += top.unknown(IGNORED_TOP_KEYS)
    if names:
        unknown(names)


def _check_media_tokens(config: Gemma4Config) -> None:
    """Refuse one id for two tokens: which medium takes its place could not be told."""
    seen: dict[int, str] = {}
    for kind, part in ((Modality.IMAGE, config.vision), (Modality.AUDIO, config.audio)):
        tokens = {} if part is None else asdict(part.tokens)
        for name, token in tokens.items():
            what = f"`{name}` of {kind.value} input"
            if token in seen:
                raise ConfigError(f"config.json has token {token} as {seen[token]} and as {what}")
            seen[token] = what
