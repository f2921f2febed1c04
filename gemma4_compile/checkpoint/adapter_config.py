"""`adapter_config.json` of PEFT: what it says of merging, and which methods are not merged here.

What an adapter changes is in its tensors; the config says by how much. Fields that steer training
alone (dropout, how the matrices began) are not read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.checkpoint.adapter_patterns import Patterns, WholeNames
from gemma4_compile.checkpoint.files import read_json
from gemma4_compile.checkpoint.kinds import ADAPTER_CONFIG, MERGE_HINT
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.options.process import warn

_SHOWN, _SHOWN_LETTERS = 8, 80
_MAX_NAMES = 100_000  # tokens, modules or patterns that a field lists

_OTHER_BASE = (
    "save the adapter with PEFT's save_pretrained(FOLDER, path_initial_model_for_weight_conversion="
    "...), which makes it one for the original model, or " + MERGE_HINT
)
# What training began from is another model than the one that the adapter names.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_REFUSED = {
    "alora_invocation_tokens": (
        "it acts from some tokens on (aLoRA), and no merged weights do that",
        "train it without alora_invocation_tokens",
    ),
    "arrow_config": (
        "it chooses among adapters for each token (Arrow), and no merged weights do that",
        "give one of its adapters",
    ),
    "layer_replication": (
        "it repeats layers of the model",
        "save the model with its repeated layers, merged, as a checkpoint of its own",
    ),
    **{
        name: (f"{method} is not merged here", MERGE_HINT)
        for name, method in (
            ("kasa_config", "KaSA"),
            ("monteclora_config", "MonteCLoRA"),
            ("use_bdlora", "BD-LoRA"),
            ("use_qalora", "QA-LoRA"),
        )
    },
}
# Of PEFT, to 0.21: of training, of loading, or of models of other kinds.
_WITHOUT_EFFECT = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "bias", "corda_config"),
        *("eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode"),
        *("init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config"),
        *("lora_bias", "lora_dropout", "lora_ga_config", "megatron_config"),
        *("megatron_core", "peft_type", "peft_version", "qalora_group_size"),
        *("revision", "runtime_config", "task_type", "velora_config"),
    )
)
# Tokens or layers of their own beside the model's: PEFT cannot merge them either.
_BESIDE_THE_MODEL = frozenset(
    (
        *("ADAPTION_PROMPT", "CARTRIDGE", "CPT", "MULTITASK_PROMPT_TUNING", "POLY", "P_TUNING"),
        *("PREFIX_TUNING", "PROMPT_TUNING", "XLORA"),
    )
)
_ALL_LINEAR, _PARAMETERS = "all-linear", "target_parameters"
_OF_MLX = ("fine_tune_type", "lora_parameters", "lora_layers")  # the last of its first versions
_NARROWING = ("exclude_modules", "layers_to_transform")
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]{1,9})\.")
_READ = frozenset(
    (
        *("alpha_pattern", "ensure_weight_tying", "lora_alpha", "modules_to_save", "r"),
        *("rank_pattern", "target_modules", "target_parameters"),
        *("trainable_token_indices", "use_dora", "use_rslora"),
    )
)


@dataclass(frozen=True)
class AdapterConfig:
    """What merging an adapter goes by.

    Attributes
    ----------
    ranks, alphas : by module, where they differ from `rank` and `alpha`
    targets : names that modules end with; None where the tensors alone say it, or a pattern does
    target_pattern : of whole names of modules that were trained, in place of `targets`
    saved : names of modules that were trained whole
    tokens : by name of an embedding, its rows that were trained
    base : the model's name
    ties : what changes the embedding changes a tied head
    excluded : names of modules that were not trained, even where `targets` has them
    excluded_pattern : of whole names of such
    layers : numbers of the layers that were trained; None: all that `targets` names
    is_partial : not all modules that `targets` name were trained
    """

    rank: int
    alpha: float
    ranks: Patterns
    alphas: Patterns
    use_rslora: bool
    use_dora: bool
    targets: frozenset[str] | None
    target_pattern: WholeNames
    saved: tuple[str, ...]
    tokens: Mapping[str, tuple[int, ...]]
    base: str | None
    ties: bool
    excluded: frozenset[str]
    excluded_pattern: WholeNames
    layers: frozenset[int] | None
    is_partial: bool

    def rank_of(self, module: str) -> int:
        """The rank that the config gives a module."""
        return int(self.ranks.of(module, self.rank))

    def scaling(self, module: str, rank: int) -> float:
        """What the product of a module's two matrices is multiplied by."""
        alpha = self.alphas.of(module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def is_target(self, module: str) -> bool:
        """Return whether PEFT would load an adapter of this module."""
        if ends_with_one(module, self.excluded) or self.excluded_pattern.fit(module):
            return False
        if self.targets is None:
            return not self.target_pattern.holds or self.target_pattern.fit(module)
        if not ends_with_one(module, self.targets):
            return False
        if self.layers is None:
            return True
        number = _LAYER.search(module)
        return number is not None and int(number[1]) in self.layers

    def is_saved(self, module: str) -> bool:
        """Return whether a module was trained as a copy of its own."""
        return ends_with_one(module, self.saved)


def ends_with_one(module: str, names: Sequence[str] | frozenset[str]) -> bool:
    """Return whether a module's name is one of these, or ends with one of them after a dot."""
    parts = module.split(".")
    return any(".".join(parts[i:]) in names for i in range(len(parts)))


def read_adapter_config(path: Path) -> AdapterConfig:
    """Read the `adapter_config.json` of a directory.

    Raises
    ------
    CheckpointError
        If it is missing or damaged, or of a method that is not merged here, by its name.
    """
    values = read_json(path / ADAPTER_CONFIG)
    _check_method(values)
    unknown = [name for name in values if name not in _WITHOUT_EFFECT | _READ | set(_REFUSED)]
    if unknown:
        shown = ", ".join(f"`{printable(name[:_SHOWN_LETTERS])}`" for name in unknown[:_SHOWN])
        more = f" and {len(unknown) - _SHOWN} others" if len(unknown) > _SHOWN else ""
        warn(
            f"{ADAPTER_CONFIG}: {shown}{more}: unknown here and to PEFT, and left out",
            "if they change what the adapter computes, merge it with PEFT and compile that",
        )
    read = _Reader(values)
    ranks = read.numbers("rank_pattern")
    if not all(rank == int(rank) and rank > 0 for rank in ranks.values()):
        raise read.wrong("rank_pattern", "whole numbers above 0")
    rank = read.number("r", 8)
    if rank != int(rank) or rank < 1:
        raise read.wrong("r", "a whole number above 0")
    base = values.get("base_model_name_or_path")
    return AdapterConfig(
        rank=int(rank),
        alpha=read.number("lora_alpha", 8),
        ranks=Patterns("rank_pattern", ranks),
        alphas=Patterns("alpha_pattern", read.numbers("alpha_pattern")),
        use_rslora=read.flag("use_rslora"),
        use_dora=read.flag("use_dora"),
        targets=_targets(read),
        target_pattern=WholeNames("target_modules", _target_pattern(read)),
        saved=tuple(read.names("modules_to_save") or ()),
        tokens=_tokens(read),
        base=base if isinstance(base, str) and base else None,
        ties=read.flag("ensure_weight_tying"),
        excluded=frozenset(
            ()
            if isinstance(values.get("exclude_modules"), str)
            else read.names("exclude_modules") or ()
        ),
        excluded_pattern=WholeNames("exclude_modules", values.get("exclude_modules")),
        layers=_layers(read),
        is_partial=any(values.get(name) not in (None, [], "") for name in _NARROWING),
    )


def _check_method(values: Mapping[str, object]) -> None:
    method = values.get("peft_type")
    if method != "LORA":
        of_mlx = any(name in values for name in _OF_MLX)
        if of_mlx:
            found = "an adapter of MLX"
        elif isinstance(method, str):
            found = f"an adapter of the method {printable(method[:_SHOWN_LETTERS])}"
        else:
            found = "no adapter of PEFT: `peft_type` is missing"
        raise CheckpointError(
            f"`{ADAPTER_CONFIG}` is of {found}; LoRA (`peft_type` LORA) is merged here"
            if isinstance(method, str) or of_mlx
            else f"`{ADAPTER_CONFIG}` is of {found}",
            hint=_method_hint(method, of_mlx=of_mlx),
        )
    for name, (why, hint) in _REFUSED.items():
        if values.get(name):
            raise CheckpointError(f"`{name}` of `{ADAPTER_CONFIG}`: {why}", hint=hint)
    began = values.get("init_lora_weights")
    if isinstance(began, str) and began.lower().startswith(_CHANGES_BASE):
        raise CheckpointError(
            f"`init_lora_weights` of `{ADAPTER_CONFIG}` is {began[:_SHOWN_LETTERS]!r}: training "
            "began from a changed model, and the adapter is for that one",
            hint=f"{_OTHER_BASE}, and compile that",
        )


def _method_hint(method: object, *, of_mlx: bool) -> str:
    if of_mlx:
        return (
            "merge it with `mlx_lm.fuse --model BASE --adapter-path FOLDER --dequantize`, and "
            "compile that"
        )
    if isinstance(method, str) and method in _BESIDE_THE_MODEL:
        return "no merged weights do what it does: train a LoRA adapter"
    return f"{MERGE_HINT}, and compile that"


def _targets(read: _Reader) -> frozenset[str] | None:
    """The list of targets; None for a pattern, or where the tensors say it."""
    if isinstance(read.values.get("target_modules"), str):
        return None
    modules = read.names("target_modules")
    parameters = read.names(_PARAMETERS)
    if modules is None or parameters:
        return None
    return frozenset(modules)


def _target_pattern(read: _Reader) -> str | None:
    """The regular expression in place of a list of targets; None where the tensors say it."""
    given = read.values.get("target_modules")
    if not isinstance(given, str) or given.lower() == _ALL_LINEAR or read.names(_PARAMETERS):
        return None
    return given


def _layers(read: _Reader) -> frozenset[int] | None:
    """The layers of `layers_to_transform`; None where it names none, or the tensors say it."""
    given = read.values.get("layers_to_transform")
    layers = [given] if type(given) is int else given
    if not layers:
        return None
    if not isinstance(layers, list) or not all(type(one) is int for one in layers):
        raise read.wrong("layers_to_transform", "a layer's number, or a list of them")
    # Under another name than `layers` it is a number of something else that PEFT looks for.
    named = read.names("layers_pattern") or ["layers"]
    return frozenset(layers) if "layers" in named else None


def _tokens(read: _Reader) -> dict[str, tuple[int, ...]]:
    given = read.values.get("trainable_token_indices")
    if given is None:
        return {}
    layers = given if isinstance(given, Mapping) else {"embed_tokens": given}
    tokens: dict[str, tuple[int, ...]] = {}
    for name, rows in layers.items():
        if (
            not isinstance(rows, list)
            or len(rows) > _MAX_NAMES
            or not all(type(row) is int and row >= 0 for row in rows)
        ):
            raise read.wrong("trainable_token_indices", "a list of token ids, or lists by module")
        tokens[str(name)] = tuple(rows)
    return tokens


@dataclass(frozen=True)
class _Reader:
    """Fields of a config by their types; null is as good as absent."""

    values: Mapping[str, object]

    def wrong(self, name: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"`{name}` of `{ADAPTER_CONFIG}` is {str(self.values.get(name))[:_SHOWN_LETTERS]!r}, "
            f"expected {expected}",
            hint="save the adapter again with PEFT's save_pretrained",
        )

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if not _is_number(value):
            raise self.wrong(name, "a number")
        assert isinstance(value, int | float)
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return bool(value)

    def numbers(self, name: str) -> dict[str, float]:
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict) or len(value) > _MAX_NAMES:
            raise self.wrong(name, "numbers by module")
        if not all(_is_number(one) for one in value.values()):
            raise self.wrong(name, "numbers by module")
        return value

    def names(self, name: str) -> list[str] | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list) or len(value) > _MAX_NAMES:
            raise self.wrong(name, "a list of names")
        if not all(isinstance(one, str) for one in value):
            raise self.wrong(name, "a list of names")
        return value


def _is_number(value: object) -> bool:
    """A number that a float holds."""
    return (type(value) is int and abs(value) < 1 << 53) or (
        isinstance(value, float) and math.isfinite(value)
    )
