"""Settings of a package's pictures and sounds: written for the runtime, from the config."""

from __future__ import annotations

from collections.abc import Mapping

from gemma4_compile.checkpoint.match import vocabulary_of
from gemma4_compile.errors import CheckpointError
from gemma4_compile.media.settings import AudioSettings, ImageSettings, MediaSettings
from gemma4_compile.media.sizes import WIDE, client_blocks
from gemma4_compile.model_spec.config.audio import SAMPLE_RATE_HZ, UnifiedAudioConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.modality import Modality

_ROWS_A_SECOND = 25
_FIRST_FRAME = 160  # samples of a tower's spectrum before the first that fills a frame's end


def settings_of(config: Gemma4Config, max_budget: int, shape: str = WIDE) -> MediaSettings:
    """Settings of a package of this config; those of text alone where it has no other sections.

    Parameters
    ----------
    max_budget : most rows of a picture that the library has room for
    shape : of the picture that the stock client hands over
    """
    image = audio = None
    if config.vision is not None:
        tokens = config.vision.tokens
        across, down = client_blocks(max_budget, shape)
        image = ImageSettings(
            begin=tokens.begin,
            soft=tokens.soft,
            end=tokens.end,
            video=tokens.video,
            block_size=config.vision.block_size,
            max_budget=max_budget,
            grid_size=config.vision.grid_size,
            client_across=across,
            client_down=down,
        )
    if config.audio is not None:
        unified = isinstance(config.audio, UnifiedAudioConfig)
        sounds = config.audio.tokens
        audio = AudioSettings(
            begin=sounds.begin,
            soft=sounds.soft,
            end=sounds.end,
            samples_per_row=_samples_per_row(config),
            unused_samples=0 if unified else _FIRST_FRAME,
        )
    whole = config.vision is not None and config.bidirectional_images
    return MediaSettings(image, audio, whole_images=whole)


def check_tokens(settings: MediaSettings, tokenizer: Mapping[str, object]) -> None:
    """Refuse a tokenizer without the tokens that stand for media: no prompt could be made.

    Parameters
    ----------
    tokenizer : the parsed `tokenizer.json`

    Raises
    ------
    CheckpointError
        Naming the first id that it lacks, and the modality to leave out.
    """
    image, audio = settings.image, settings.audio
    needed = [] if image is None else [(image.soft, Modality.IMAGE), (image.video, Modality.IMAGE)]
    needed += [] if audio is None else [(audio.soft, Modality.AUDIO)]
    vocabulary, added = vocabulary_of(tokenizer)
    known = {*vocabulary.values(), *(token.get("id") for token in added)}
    for token, modality in needed:
        if token not in known:
            raise CheckpointError(
                f"`tokenizer.json` has no token {token}, which config.json has for "
                f"{modality.value} input",
                hint="save the tokenizer that the model was trained with again, or leave "
                f"`{modality.value}` out of --modalities",
            )


def _samples_per_row(config: Gemma4Config) -> int:
    if isinstance(config.audio, UnifiedAudioConfig):
        return config.audio.frame_size
    return SAMPLE_RATE_HZ // _ROWS_A_SECOND
