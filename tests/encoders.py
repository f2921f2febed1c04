"""Small random encoders, in transformers and compiled for this process, on the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.compile.build import build_module, decoder_options
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.embedding.parameters import parameter_table
from gemma4_compile.passes.lowering import generate, lower
from gemma4_compile.quantization.convert import read_parameter_rows
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.schemes import RECIPES
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.targets import link, target_spec
from tests.packages import sources_of, unoptimised
from tests.random_values import random_tensor

Float32Array = npt.NDArray[np.float32]
Weights = dict[str, Float32Array]
Texts = Sequence[Sequence[int]]

MOST_ROWS = 256
TINY: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "hidden_size_per_layer_input": 32,
    "embedding_dim": 96,
    "max_position_embeddings": 512,
}

CPU = Device.open("cpu")

torch.set_num_threads(1)  # the models are tiny, and test machines are shared


def reference(text: Mapping[str, Any], seed: int, *, whole: bool = False) -> Any:
    """A model of transformers in float32 on random weights: with its wrapping, or the text's."""
    from transformers import (
        EmbeddingGemma2Config,
        EmbeddingGemma2Model,
        EmbeddingGemma2TextConfig,
        EmbeddingGemma2TextModel,
    )

    config = EmbeddingGemma2TextConfig(**text)
    config._attn_implementation = "eager"
    if whole:
        wrapped = EmbeddingGemma2Config(text_config=config, vision_config=None, audio_config=None)
        model: Any = EmbeddingGemma2Model(wrapped)
    else:
        model = EmbeddingGemma2TextModel(config)
    put(model, {n: random_tensor(n, tuple(t.shape), seed) for n, t in tensors_of(model).items()})
    return model.eval()


def tensors_of(model: Any) -> dict[str, torch.Tensor]:
    """The tensors that a checkpoint has."""
    return dict(model.state_dict())


def weights_of(model: Any) -> Weights:
    """Values of a model of transformers, by the names that the text encoder's tensors have."""
    front = "language_model."
    return {n.removeprefix(front): t.numpy() for n, t in tensors_of(model).items()}


def put(model: Any, weights: Mapping[str, Float32Array]) -> None:
    """Give a model of transformers these weights."""
    model.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in weights.items()})


def embedded(model: Any, texts: Texts) -> Float32Array:
    """Means of the rows of each text, one text a call, of length 1."""
    vectors = []
    for ids in texts:
        with torch.no_grad():
            rows = model(input_ids=torch.tensor([list(ids)])).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(rows.mean(0), dim=0).numpy())
    return np.stack(vectors).astype(np.float32)


def random_texts(lengths: Sequence[int], seed: int, vocab: int = 256) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocab, length).tolist() for length in lengths]


def packed(texts: Texts) -> tuple[npt.NDArray[np.int32], ...]:
    """What `embed_texts` takes: ids, spans, ranges."""
    lengths = np.array([len(text) for text in texts])
    ends = np.cumsum(lengths)
    ranges = np.stack([ends - lengths, ends], axis=1).astype(np.int32)
    ids = np.concatenate([np.asarray(text, np.int32) for text in texts])
    return ids, np.repeat(ranges, lengths, axis=0), ranges


@dataclass(frozen=True)
class Compiled:
    """An encoder in this process; `weights` are what its stored tensors mean."""

    library: NativeLibrary
    params: list[tvm_ffi.Tensor]
    weights: Weights

    def embed(self, texts: Texts) -> Float32Array:
        """Embeddings of some texts, in one call."""
        args = [CPU.place(one) for one in packed(texts)]
        embed = self.library.compiled_function(abi.EMBED_TEXTS)
        return np.array(CPU.read(embed(*args, tvm_ffi.Array(self.params))))


def compiled(
    values: Mapping[str, Any],
    weights: Mapping[str, Float32Array],
    folder: Path,
    recipe: str = "f32",
    pads_texts: bool = False,
    most_rows: int = MOST_ROWS,
) -> Compiled:
    """Compile into `folder` for the CPU, with the weights stored by a recipe.

    `values` are a config.json; names of `weights` have no prefix. With `pads_texts` the
    library takes the stock client's calls, too, as those for browsers do.
    """
    config = Gemma4Config.from_dict(values)
    chosen, spec = RECIPES[recipe], target_spec("cpu")
    plan = storage_plan(parameter_table(config), chosen, None)
    options = replace(decoder_options(chosen, spec, most_rows), pads_texts=pads_texts)
    with unoptimised():
        executable = generate(lower(build_module(config, chosen, spec, options, plan), spec), spec)
    stored, meant = [], {}
    for entry in plan:
        parameter = entry.parameter
        rows = read_parameter_rows(
            parameter, lambda name, begin, end: weights[name][begin:end], 0, parameter.shape[0]
        )
        arrays = entry.scheme.store(rows, name=parameter.name, first_row=0)
        stored += [CPU.place(np.ascontiguousarray(one)) for one in arrays]
        meant.update(sources_of(parameter, entry.scheme.load(list(arrays))))
    path = folder / f"encoder{spec.library_suffix}"
    link(executable, path, spec, None)
    return Compiled(NativeLibrary(path, CPU), stored, meant)
