"""Files of other programs and purposes, by their names, and what to do about them.

The table that `kinds` looks into where no checkpoint is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gemma4_compile.checkpoint.torch_files import conversion
from gemma4_compile.options.package import DEFAULT_MODEL


@dataclass(frozen=True)
class FileKind:
    """Files of another program or purpose, by their names; `hint` is what to do about them."""

    pattern: str
    what: str
    hint: str

    def first(self, names: Iterable[str]) -> str | None:
        """The first file of this kind, the nearest one before those in folders."""
        found = (n for n in names if re.fullmatch(self.pattern, n, re.IGNORECASE))
        return min(found, key=lambda name: (name.count("/"), name), default=None)


_ONLY = "; only safetensors are read"
_TAKE_SOURCE = (
    "take the original checkpoint that it was made from, by its hub id "
    f"(such as {DEFAULT_MODEL}) or its directory: your own training is in the folder that was "
    "converted"
)
FILE_KINDS = (
    FileKind(
        r"(.*/)?[^/]+\.(incomplete|crdownload|part|partial|download|aria2|!qb)",
        "what a download that has not ended left",
        "download it to its end: `hf download ID --local-dir FOLDER` goes on where it was",
    ),
    FileKind(
        r"[^/]+\.(zip|tar|tgz|tar\.\w+|7z|rar)",
        f"an archive{_ONLY}",
        "unpack it, and give the folder with config.json",
    ),
    FileKind(r"(.*/)?[^/]+\.onnx(_data.*)?", f"an ONNX file{_ONLY}", _TAKE_SOURCE),
    FileKind(
        r"(.*/)?[^/]+\.(tflite|task|litertlm)",
        f"a file of LiteRT and MediaPipe{_ONLY}",
        _TAKE_SOURCE,
    ),
    FileKind(
        r"(.*/)?openvino_\w+\.(xml|bin)",
        f"a file of OpenVINO{_ONLY}",
        _TAKE_SOURCE,
    ),
    FileKind(
        r"(.*/)?[^/]+\.(mlpackage|mlmodel|mlmodelc)(/.*)?|(.*/)?[^/]+\.pte",
        f"a file of Core ML or ExecuTorch{_ONLY}",
        _TAKE_SOURCE,
    ),
    FileKind(
        r"(mlc-chat-config|ndarray-cache|tensor-cache)\.json",
        "of a model that is compiled already, for MLC-LLM or WebLLM",
        _TAKE_SOURCE,
    ),
    FileKind(
        r"[^/]+\.nemo|context/(model\.yaml|io\.json)|latest_checkpointed_iteration\.txt",
        f"of a checkpoint of NeMo or Megatron{_ONLY}",
        "export it in the format of transformers: NeMo and Megatron Bridge have `export_ckpt`",
    ),
    FileKind(
        r"(.*/)?([^/]+\.distcp|__\d+_\d+\.distcp)",
        f"a shard that FSDP wrote while training{_ONLY}",
        "put the shards together: `accelerate merge-weights FOLDER NEW_FOLDER`, then copy "
        "config.json and the tokenizer files into the new folder",
    ),
    FileKind(
        r"(.*/)?(zero_to_fp32\.py|mp_rank_\d+_model_states\.pt|\w+_optim_states\.pt)",
        f"of a checkpoint that DeepSpeed wrote while training{_ONLY}",
        "put its shards together: `python zero_to_fp32.py . NEW_FOLDER --safe_serialization` in "
        "that folder, then copy config.json and the tokenizer files into the new folder",
    ),
    FileKind(
        r"(.*/)?(_METADATA|_CHECKPOINT_METADATA|manifest\.ocdbt|flax_model.*\.msgpack)",
        f"of a checkpoint of JAX (Orbax or Flax){_ONLY}",
        "take the checkpoint in the format of transformers; Google has one beside each of these",
    ),
    FileKind(
        r"(.*/)?([^/]+\.(keras|h5)|tf_model.*)",
        f"a file of Keras or TensorFlow{_ONLY}",
        "export it in the format of transformers (keras_hub has `export_to_transformers`)",
    ),
    FileKind(r"[^/]+\.npz", f"a file of old versions of MLX{_ONLY}", _TAKE_SOURCE),
    FileKind(
        r"model_index\.json",
        "of a pipeline of diffusers, which is no language model",
        f"give the hub id or the directory of a Gemma 4, such as {DEFAULT_MODEL}",
    ),
    FileKind(
        r"(.*/)?pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?",
        "not read: only safetensors, for a pickle may run any code",
        conversion("pytorch_model"),
    ),
    FileKind(
        r"(.*/)?adapter_model\.bin",
        "not read: only safetensors, for a pickle may run any code",
        conversion("adapter_model"),
    ),
    FileKind(
        r"(?!optimizer|scheduler|training_args|rng_state|scaler|random_states)"
        r"[^/]+\.(bin|pt|pth|ckpt|pkl)",
        "not read: only safetensors, for a pickle may run any code",
        "load the folder with transformers, if you trust it, and save it with save_pretrained",
    ),
    FileKind(
        r"(optimizer|scheduler|training_args|rng_state.*|scaler|random_states.*)"
        r"\.(bin|pt|pth|pkl|safetensors)",
        "what training goes on from, without the weights of a model",
        "give the folder that the trainer saved the model to, or save it there: "
        "trainer.save_model(FOLDER)",
    ),
)
