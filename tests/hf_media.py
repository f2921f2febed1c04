"""transformers as the truth for contexts with pictures and sounds, whose rows are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling

from gemma4_compile import abi
from gemma4_compile.tiny.architecture import HEAD
from tests import hf
from tests.models import tensor_name

Float32Array = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

# Placeholders beyond the vocabulary: a greedy token that is one would be taken for a row of a
# picture. Rows of sounds come in by the placeholder of videos: both are replaced in the same way,
# and their types decide what they see.
PICTURE_ID, SOUND_ID, AUDIO_ID = 1000, 1001, 1002
_PICTURE_TYPE, _SOUND_TYPE = 1, 3
_IDS = {abi.MODALITY_MEDIA: PICTURE_ID, abi.MODALITY_AUDIO: SOUND_ID}
_TYPES = {abi.MODALITY_MEDIA: _PICTURE_TYPE, abi.MODALITY_AUDIO: _SOUND_TYPE}


@dataclass(frozen=True)
class Context:
    """A sequence: token ids, and rows of pictures and sounds where `modality` says so.

    Attributes
    ----------
    ids, modality : (S,); the ids of rows that are no text mean nothing
    rows : (S, hidden_size), read where `modality` is not text
    """

    ids: IntArray
    modality: IntArray
    rows: Float32Array

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Context:
        return Context(self.ids[part], self.modality[part], self.rows[part])

    def __add__(self, other: Context) -> Context:
        pairs = zip(self._arrays(), other._arrays(), strict=True)
        return Context(*(np.concatenate(pair) for pair in pairs))

    def _arrays(self) -> tuple[npt.NDArray[Any], ...]:
        return self.ids, self.modality, self.rows


def text(ids: IntArray, width: int) -> Context:
    """A context of tokens alone."""
    shape = (len(ids), width)
    return Context(ids, np.full(len(ids), abi.MODALITY_TEXT), np.zeros(shape, np.float32))


def load(
    text_config: Mapping[str, Any], weights: Mapping[str, Float32Array]
) -> Gemma4ForConditionalGeneration:
    """Build the model that takes pictures, in float32, without towers."""
    unified = text_config["model_type"] == "gemma4_unified_text"
    kind = Gemma4UnifiedForConditionalGeneration if unified else Gemma4ForConditionalGeneration
    config = (Gemma4UnifiedConfig if unified else Gemma4Config)(
        text_config=dict(text_config),
        tie_word_embeddings=text_config["tie_word_embeddings"],
        vision_config=None,
        audio_config=None,
        image_token_id=PICTURE_ID,
        video_token_id=SOUND_ID,
        audio_token_id=AUDIO_ID,
    )
    model: Gemma4ForConditionalGeneration = kind._from_config(  # type: ignore[no-untyped-call]
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    state = {
        tensor_name(name): torch.from_numpy(np.array(value)) for name, value in weights.items()
    }
    state.setdefault(HEAD, state[tensor_name("embed_tokens.weight")])
    model.load_state_dict(state, strict=True)
    return model


def _inputs(context: Context) -> dict[str, Any]:
    """Arguments that `forward` and `generate` share. Encoders' outputs take the place of pixels."""
    ids, types = context.ids.copy(), np.zeros(len(context), np.int64)
    for modality, placeholder in _IDS.items():
        ids[context.modality == modality] = placeholder
        types[context.modality == modality] = _TYPES[modality]
    encoded = {}
    for name, modality in (("image", abi.MODALITY_MEDIA), ("video", abi.MODALITY_AUDIO)):
        rows = context.rows[context.modality == modality]
        if len(rows):
            of_encoder: Any = [torch.from_numpy(rows)]  # the annotation leaves lists out
            encoded[name] = BaseModelOutputWithPooling(pooler_output=of_encoder)
    return {
        "input_ids": torch.from_numpy(ids)[None],
        "mm_token_type_ids": torch.from_numpy(types)[None],
        "mm_encoder_outputs": encoded,
    }


def logits(model: Gemma4ForConditionalGeneration, context: Context) -> Float32Array:
    """Logits (S, vocab_size) of one whole sequence, without a cache.

    The masks are those that the model itself has for generation. `forward` of 12B alone would make
    others if it were not given any: it opens full layers, too.
    """
    inputs = _inputs(context)
    masks = model.create_masks_for_generate(
        model.config,
        torch.empty((1, len(context), 0)),
        None,
        None,
        torch.arange(len(context))[None],
        mm_token_type_ids=inputs["mm_token_type_ids"],
    )
    with torch.no_grad():
        result = model(**inputs, attention_mask=masks, use_cache=False).logits[0]
    return np.asarray(result.numpy(), dtype=np.float32)


def generate(
    model: Gemma4ForConditionalGeneration, context: Context, count: int
) -> tuple[list[int], Float32Array]:
    """Greedy tokens after a context, and the logits (count, vocab_size) that they are from.

    With a cache of fixed size, for which `generate` makes the masks as `logits` does.
    """
    generating: Any = model
    with torch.no_grad():
        result = generating.generate(
            **_inputs(context),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            cache_implementation="static",
            disable_compile=True,
            output_logits=True,
            return_dict_in_generate=True,
        )
    tokens = result.sequences[0, len(context) :].tolist()
    return tokens, np.asarray(torch.cat(result.logits).numpy(), dtype=np.float32)


def routing_gap(model: Gemma4ForConditionalGeneration, context: Context) -> float:
    """How clearly experts are chosen in the sequence, as `hf.routing_gaps` has it."""
    with hf.noted_gaps(model, (len(context),)) as gaps:
        logits(model, context)
    return float(np.min(gaps))
