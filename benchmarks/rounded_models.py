"""Models whose matrices are rounded part by part, next to themselves in float32.

transformers computes both in float32: storing weights changes nothing but their values, so this is
what a recipe costs without its kernels, and a combination takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from benchmarks.quantizers import QUANTIZERS, Float32Array
from benchmarks.synthetic_checkpoint import config_json
from gemma4_compile import abi
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.parameters import Role, Source
from gemma4_compile.model_spec.text.parameters import parameter_table
from gemma4_compile.package.artifacts import TensorCache, read_artifact
from gemma4_compile.quantization.recipe import storage_plan
from gemma4_compile.quantization.recipe_file import with_overrides
from gemma4_compile.runtime.package.package import read_provenance
from gemma4_compile.targets import target_spec
from gemma4_compile.verification.stored_weights import StoredWeights
from gemma4_compile.verification.subject import overrides_of
from tests import hf, models
from tools.training.tiny import model as tiny_model
from tools.training.tiny.data import answered, padded
from tools.training.tiny.further import all_evaluation_dialogues

PARTS = ("head", "table", "small", "q", "k", "v", "o", "gate", "up", "down")
"""Kinds of matrices. `head`: the token embedding, the head being tied. `small`: the projections
around the per-layer embeddings. `table`: the per-layer embeddings."""
HEAVY_DEGREES = 3  # of Student's t distribution
_PROMPTS, _PROMPT = 24, 64
_BATCH = 20
WEIGHTS = tiny_model.SHIPPED_FILES / "model.safetensors"
_LAYER = re.compile(r"layers\.(\d+)\.")


def part_of(source: Source, role: Role) -> str | None:
    """The part of a checkpoint tensor; None for vectors."""
    named = {
        Role.TOKEN_EMBEDDING: "head",
        Role.LM_HEAD: "head",
        Role.PER_LAYER_EMBEDDING: "table",
        Role.PER_LAYER_LINEAR: "small",
        Role.EXPERTS: "experts",
    }
    if role is Role.LINEAR:
        return source.name.removesuffix("_proj.weight").rpartition(".")[2]
    return named.get(role)


def matrices(config: Gemma4Config) -> dict[str, tuple[str, int | None, int]]:
    """Part, layer and number of weights of every matrix that recipes round, by tensor."""
    found = {}
    for parameter in parameter_table(config):
        for source in parameter.sources:
            part, layer = part_of(source, parameter.role), _LAYER.match(source.name)
            if part is not None:
                number = None if layer is None else int(layer[1])
                found[source.name] = part, number, prod(source.shape)
    return found


@dataclass(frozen=True)
class Loss:
    """A rounded model next to itself.

    Attributes
    ----------
    kl_mean, kl_replies : mean divergence of the next token, nats: of all positions, and of those
        before a token of the model's own, if there are
    top1 : share of positions with the same most probable token
    """

    kl_mean: float
    kl_replies: float | None
    top1: float


def _parameter(model: Any, tensor: str) -> torch.Tensor:
    found: torch.Tensor = model.get_parameter(models.tensor_name(tensor, "transformers"))
    return found


@dataclass
class Subject:
    """A model, the tokens that it reads, and what it says of them in float32.

    Attributes
    ----------
    rows : dialogues, batched: token ids, which positions count, which precede the model's own token
    """

    name: str
    config: Gemma4Config
    model: Any
    weights: Mapping[str, Float32Array]
    rows: list[tuple[torch.Tensor, ...]]
    _rounded: dict[tuple[str, str], torch.Tensor] = field(default_factory=dict)
    _reference: torch.Tensor | None = None

    @property
    def positions(self) -> int:
        """How many are compared."""
        return sum(int(counted.sum()) for _, counted, _ in self.rows)

    def _log_probabilities(self) -> torch.Tensor:
        with torch.no_grad():
            found = [
                self.model(ids, use_cache=False).logits[counted].log_softmax(-1)
                for ids, counted, _ in self.rows
            ]
        return torch.cat(found)

    def _put(self, name: str, values: torch.Tensor) -> None:
        _parameter(self.model, name).data.copy_(values)

    def _value(self, name: str, quantizer: str) -> torch.Tensor:
        key = name, quantizer
        if key not in self._rounded:
            self._rounded[key] = torch.from_numpy(QUANTIZERS[quantizer](self.weights[name]))
        return self._rounded[key]

    def loss(self, choose: Callable[[str, int | None], str | None]) -> Loss:
        """The loss with quantizers by part and layer; None leaves a matrix as it is."""
        if self._reference is None:
            self._reference = self._log_probabilities()
        changed = []
        for name, (part, layer, _) in matrices(self.config).items():
            quantizer = choose(part, layer)
            if quantizer is not None:
                self._put(name, self._value(name, quantizer))
                changed.append(name)
        return self._compared(changed)

    def loss_of(self, package: Path) -> Loss:
        """The loss with the matrices that a package of this model stores."""
        if self._reference is None:
            self._reference = self._log_probabilities()
        stored = stored_weights(package, self.config)
        for name, weight in self.weights.items():
            self._put(name, torch.from_numpy(stored.read(name, 0, weight.shape[0])))
        return self._compared(list(self.weights))

    def _compared(self, changed: list[str]) -> Loss:
        """The loss with what was put in the place of these matrices, which it puts back."""
        reference, found = self._reference, self._log_probabilities()
        assert reference is not None
        for name in changed:
            self._put(name, torch.from_numpy(self.weights[name]))
        divergence = (reference.exp() * (reference - found)).sum(-1)
        replies = torch.cat([own[counted] for _, counted, own in self.rows])
        return Loss(
            kl_mean=float(divergence.mean()),
            kl_replies=float(divergence[replies].mean()) if replies.any() else None,
            top1=float((reference.argmax(-1) == found.argmax(-1)).float().mean()),
        )

    def weight_error(self, quantizer: str) -> float:
        """Relative error of the weights of all matrices."""
        wrong = whole = 0.0
        for name in matrices(self.config):
            weight = self.weights[name]
            wrong += float(((self._value(name, quantizer).numpy() - weight) ** 2).sum())
            whole += float((weight**2).sum())
        return (wrong / whole) ** 0.5


def stored_weights(package: Path, config: Gemma4Config) -> StoredWeights:
    """Reads the weights of a package's text decoder."""
    build = read_provenance(package).build
    recipe = with_overrides(build["recipe"], overrides_of(build))
    limits = target_spec(build["target"], build["limits"])
    plan = storage_plan(parameter_table(config), recipe, limits.max_binding_bytes)
    cache = TensorCache.from_json(read_artifact(package / abi.TENSOR_CACHE_FILE))
    return StoredWeights(package, cache, plan)


def _subject(
    name: str, config: Gemma4Config, model: Any, rows: list[tuple[torch.Tensor, ...]]
) -> Subject:
    weights = {
        tensor: _parameter(model, tensor).detach().numpy().copy() for tensor in matrices(config)
    }
    return Subject(name, config, model, weights, rows)


def tiny(
    per_kind: int, name: str = "tiny", checkpoint: Path = WEIGHTS, *, seed: int = 1
) -> Subject:
    """`tiny`, or other weights of its shapes, on held-out dialogues of every kind."""
    config = tiny_model.read_config(tiny_model.SHIPPED_FILES)
    tokenizer = Tokenizer.from_file(str(tiny_model.SHIPPED_FILES / "tokenizer.json"))
    texts = [dialogue.text() for dialogue in all_evaluation_dialogues(per_kind, seed)]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    dialogues = sorted((np.asarray(one.ids) for one in encoded), key=len)
    rows: list[tuple[torch.Tensor, ...]] = []
    for begin in range(0, len(dialogues), _BATCH):
        batch = dialogues[begin : begin + _BATCH]
        ids = padded(batch)
        counted = np.arange(ids.shape[1]) < np.array([[len(one)] for one in batch])
        own = np.zeros(ids.shape, bool)
        own[:, :-1] = answered(ids, tokenizer.token_to_id("model"))[:, 1:]
        rows.append((torch.from_numpy(ids), torch.from_numpy(counted), torch.from_numpy(own)))
    model = tiny_model.load(config, checkpoint)
    return _subject(name, Gemma4Config.from_dict(config), model, rows)


def heavy(seed: int = 0) -> Subject:
    """A random decoder of E2B's kind, four times as wide, whose matrices have heavy tails."""
    text = {**models.KINDS["e2b"], "hidden_size": 512, "intermediate_size": 1024}
    weights = models.random_weights(text, seed=seed)
    random = np.random.default_rng(seed)
    for name, values in weights.items():
        if values.ndim == 2:
            drawn = random.standard_t(HEAVY_DEGREES, values.shape)
            drawn *= float(values.std()) / float(drawn.std())
            weights[name] = drawn.astype(np.float32)
    ids = torch.from_numpy(np.stack([models.prompt(_PROMPT, seed=i) for i in range(_PROMPTS)]))
    counted = torch.ones(ids.shape, dtype=torch.bool)
    config = Gemma4Config.from_dict(models.config_file(text, "hub", "float32"))
    model = hf.load(text, weights, "float32")
    return _subject("heavy", config, model, [(ids, counted, ~counted)])


def released(model: str) -> Gemma4Config:
    """The config of a released size."""
    return Gemma4Config.from_dict(config_json(model))
