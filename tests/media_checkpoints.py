"""Small random checkpoints that see and hear, and transformers' own way from files to tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.models import gemma4, gemma4_unified
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.tiny.checkpoint import TOKENIZER_FILES, shipped_file
from gemma4_compile.tiny.safetensors_file import write_safetensors
from tests import models, sounds, vision_models

# As the shipped tokenizer has them.
IDS = {
    "boi_token_id": 1017,
    "boa_token_id": 1018,
    "image_token_id": 1019,
    "audio_token_id": 1020,
    "eoi_token_id": 1021,
    "eoa_token_index": 1022,
    "video_token_id": 1023,
}
_TOKENS = {
    "boi_token": "<|image>",
    "image_token": "<|image|>",
    "eoi_token": "<image|>",
    "boa_token": "<|audio>",
    "audio_token": "<|audio|>",
    "eoa_token": "<audio|>",
}


@dataclass(frozen=True)
class Kind:
    """A text decoder and what it takes besides text."""

    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    audio: Mapping[str, Any] | None

    @property
    def is_unified(self) -> bool:
        """Return whether it has no towers."""
        return str(self.text["model_type"]).startswith("gemma4_unified")

    @property
    def patch_size(self) -> int:
        """Pixels of a patch's side."""
        return int(self.vision["patch_size"])


def _text(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 1024, "vocab_size_per_layer_input": 1024}
    return {**base, **sizes, "max_position_embeddings": 1024, **changes}


KINDS: Mapping[str, Kind] = {
    "e2b": Kind(_text(models.E2B_LIKE), vision_models.CLIPPED, sounds.TOWER),
    "dense": Kind(
        _text(models.DENSE_LIKE, use_bidirectional_attention="vision"),
        vision_models.STANDARD,
        None,
    ),
    "moe": Kind(
        _text(models.MOE_LIKE, use_bidirectional_attention="vision"),
        vision_models.STANDARD,
        None,
    ),
    "unified": Kind(_text(models.UNIFIED_LIKE), vision_models.UNIFIED, sounds.UNIFIED),
}


def with_room(kind: Kind, tokens: int) -> Kind:
    """The kind with tables of positions for pictures of so many tokens, and a context for them."""
    table = "mm_posemb_size" if kind.is_unified else "position_embedding_size"
    text = {**kind.text, "max_position_embeddings": 2048}
    return replace(kind, text=text, vision={**kind.vision, table: 3 * 2 * math.isqrt(tokens)})


def write_checkpoint(directory: Path, kind: Kind, seed: int = 0) -> Path:
    """Write config, weights, tokenizer and template of a kind into a new directory."""
    values = {
        **models.config_file(kind.text, "hub", "float32"),
        **IDS,
        "vision_config": dict(kind.vision),
        "audio_config": None if kind.audio is None else dict(kind.audio),
    }
    config = Gemma4Config.from_dict(values, modalities=None)
    weights = {
        f"model.language_model.{name}": value
        for name, value in models.random_weights(kind.text, seed=seed).items()
    }
    weights |= vision_models.random_weights(config, seed)
    if kind.audio is not None:
        weights |= sounds.weights_of(config, seed)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(values, indent=2))
    write_safetensors(directory / "model.safetensors", weights, "float32")
    for name in TOKENIZER_FILES:
        (directory / name).write_bytes(shipped_file(name))
    return directory


def _without_videos(processor: Any, video_processor: Any) -> tuple[Any, Any]:
    """The class of processors that takes any video processor, and one that was never made.

    To make or to look up one needs torchvision; none is used here.
    """

    class WithoutVideos(processor):
        def check_argument_for_proper_class(self, *arguments: object) -> None:
            del arguments

    return WithoutVideos, video_processor.__new__(video_processor)


class _Merging(Gemma4ImageProcessorPil):
    """12B's processor, which needs torchvision: the other's patches, 3 x 3 of them as a square."""

    def preprocess(self, *arguments: Any, **options: Any) -> Any:
        found = super().preprocess(*arguments, **{**options, "return_tensors": "pt"})
        pairs = zip(found["pixel_values"], found["image_position_ids"], strict=True)
        merged = [self._merged(patches.numpy(), places.numpy()) for patches, places in pairs]
        for name, arrays in zip(
            ("pixel_values", "image_position_ids"), zip(*merged, strict=True), strict=True
        ):
            found[name] = torch.from_numpy(np.stack(arrays))
        return found

    def _merged(
        self, patches: npt.NDArray[Any], places: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Squares (n, side * side * 3) and their cells (n, 2), -1 of what is padding."""
        size, pool = self.patch_size, self.pooling_kernel_size
        columns, rows = places.max(axis=0) + 1
        whole = np.zeros((rows * size, columns * size, 3), patches.dtype)
        for patch, (x, y) in zip(patches, places, strict=True):
            if x >= 0:
                square = patch.reshape(size, size, 3)
                whole[y * size : (y + 1) * size, x * size : (x + 1) * size] = square
        side, across, down = size * pool, columns // pool, rows // pool
        squares = whole.reshape(down, side, across, side, 3).swapaxes(1, 2)
        pixels = np.zeros((self.max_soft_tokens, side * side * 3), patches.dtype)
        cells = np.full((self.max_soft_tokens, 2), -1)
        pixels[: across * down] = squares.reshape(across * down, -1)
        cells[: across * down] = [(x, y) for y in range(down) for x in range(across)]
        return pixels, cells


class Truth:
    """transformers: its processor, its model, greedy tokens and their logits."""

    def __init__(self, directory: Path, kind: Kind, image_tokens: int = 280) -> None:
        unified = kind.is_unified
        loader: Any = (
            transformers.Gemma4UnifiedForConditionalGeneration
            if unified
            else transformers.Gemma4ForConditionalGeneration
        )
        model: Any = loader.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )
        self.model = model.eval()
        tokenizer_class: Any = PreTrainedTokenizerFast
        tokenizer = tokenizer_class(
            tokenizer_file=str(directory / "tokenizer.json"),
            extra_special_tokens=_TOKENS,
            bos_token="<bos>",
            eos_token="<eos>",
            pad_token="<pad>",
        )
        tokenizer.chat_template = (directory / "chat_template.jinja").read_text()
        names = gemma4_unified if unified else gemma4
        prefix = "Gemma4Unified" if unified else "Gemma4"
        sizes: dict[str, Any] = {
            **{"patch_size": kind.patch_size, "pooling_kernel_size": 3},
            "max_soft_tokens": image_tokens,
        }
        processor, videos = _without_videos(
            getattr(names, f"{prefix}Processor"), getattr(names, f"{prefix}VideoProcessor")
        )
        self.processor = processor(
            feature_extractor=getattr(names, f"{prefix}AudioFeatureExtractor")(),
            image_processor=(_Merging if unified else Gemma4ImageProcessorPil)(**sizes),
            tokenizer=tokenizer,
            video_processor=videos,
            chat_template=tokenizer.chat_template,
        )

    def inputs(
        self,
        text: str,
        images: Sequence[npt.NDArray[np.uint8]],
        sounds: Sequence[npt.NDArray[np.float32]],
    ) -> Any:
        """What the model takes for a rendered conversation and its media."""
        media: dict[str, Any] = {}
        if images:
            media["images"] = [list(images)]
        if sounds:
            media["audio"] = list(sounds)
        return self.processor(text=[text], return_tensors="pt", **media)

    def after(self, first: Any, reply: Sequence[int], then: Any) -> Any:
        """Inputs of a second turn, whose reply before it is of these ids."""
        end = self.processor.tokenizer("<turn|>\n", add_special_tokens=False)["input_ids"]
        between = torch.tensor([[*reply, *end]])
        joined = {
            "input_ids": (first["input_ids"], between, then["input_ids"]),
            "attention_mask": (first["attention_mask"], between * 0 + 1, then["attention_mask"]),
            "mm_token_type_ids": (
                *(first["mm_token_type_ids"], between * 0, then["mm_token_type_ids"]),
            ),
        }
        return {
            **{name: torch.cat(parts, dim=1) for name, parts in joined.items()},
            **{
                name: torch.cat([first[name], then[name]])
                for name in ("pixel_values", "image_position_ids")
            },
        }

    def generate(self, inputs: Any, count: int) -> tuple[list[int], npt.NDArray[np.float32]]:
        """`count` greedy tokens, and the logits (count, vocab_size) that chose them.

        With a cache of fixed size, for which `generate` makes the masks: see tests/hf_media.py.
        """
        with torch.no_grad():
            found = self.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                eos_token_id=None,
                cache_implementation="static",
                disable_compile=True,
                output_logits=True,
                return_dict_in_generate=True,
            )
        length = inputs["input_ids"].shape[1]
        logits = torch.stack(found.logits, dim=1)[0].numpy()
        return found.sequences[0, length:].tolist(), logits
