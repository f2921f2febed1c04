"""Sources of models, the MODEL of the command line: what ships, a directory, a preset, a hub id."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemma4_compile import abi, tiny
from gemma4_compile.checkpoint import hub, kinds
from gemma4_compile.checkpoint.adapter_source import (
    AdapterSource,
    config_with,
    merged,
    open_adapters,
)
from gemma4_compile.checkpoint.chat_files import read_chat_template
from gemma4_compile.checkpoint.files import CONFIG_FILE, TOKENIZER_FILE, read_json
from gemma4_compile.checkpoint.gguf import files as gguf_files
from gemma4_compile.checkpoint.gguf.opening import (
    NO_TEXTS,
    TOKENIZER_OPTION,
    Tokenizer,
    check_modalities,
    checkpoint_of,
    open_gguf,
)
from gemma4_compile.checkpoint.head import with_head
from gemma4_compile.checkpoint.hub_id import hint_of_id, is_hub_id
from gemma4_compile.checkpoint.input_files import Files, checkpoint_files
from gemma4_compile.checkpoint.loaded_dtype import loaded_dtype
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.match import Checkpoint, read_generation_config
from gemma4_compile.checkpoint.quantised.read import check_config, dequantised
from gemma4_compile.checkpoint.weight_files import listing, open_tensors
from gemma4_compile.errors import CheckpointError, UsageError, printable
from gemma4_compile.model_spec.config.gemma4 import (
    Gemma4Config,
    encoder_presets,
    preset_file,
    preset_names,
)
from gemma4_compile.model_spec.modality import TEXT_ONLY, Modality
from gemma4_compile.options.package import DEFAULT_MODEL
from gemma4_compile.options.process import warn
from gemma4_compile.system.files import scratch_folder

TINY = "tiny"
TINY_EMBEDDING = "tiny-embedding"
SHIPPED = {TINY: tiny.materialize, TINY_EMBEDDING: tiny.materialize_embedding}
"""Models that ship, which provenance has as their own kinds, and what copies each to a folder."""
Modalities = Collection[Modality] | None
_SHOWN_NAMES, _SHOWN_LETTERS = 8, 80  # of unknown keys


@dataclass(frozen=True)
class ModelSource:
    """Source of a model, and its checked config.

    Attributes
    ----------
    origin : its entry in provenance; no paths of this machine
    generation_config : the parsed `generation_config.json`, empty if there is none
    checkpoint : None when only the config was asked for
    files : what is read of it; of a preset nothing
    """

    origin: Mapping[str, object]
    config: Gemma4Config
    generation_config: Mapping[str, object]
    checkpoint: Checkpoint | None
    files: Files = field(default_factory=dict)
    adapters: tuple[Files, ...] = ()


def _read_config(path: Path, modalities: Modalities) -> Gemma4Config:
    values = read_json(path / CONFIG_FILE)
    config = Gemma4Config.from_dict(values, warn_of_unknown, modalities)
    check_config(values)
    if values.get("auto_map"):
        warn(
            "the checkpoint brings code of its own (`auto_map` of config.json), which is not run: "
            "it is compiled as transformers loads it without trust_remote_code",
            "if that code computes something else, replies differ from those with it: read it, or "
            "ask who published it",
        )
    return config


def warn_of_unknown(names: list[str], option: str = "") -> None:
    """Name the keys of a config that nobody knows; `option` begins the warning."""
    shown = ", ".join(f"`{printable(name[:_SHOWN_LETTERS])}`" for name in names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} others" if len(names) > _SHOWN_NAMES else ""
    verb = "are" if len(names) > 1 else "is"
    warn(
        f"{option}config.json: {shown}{more} {verb} unknown here and to transformers, and left out",
        "if the model answers badly, it may be of another architecture: gemma4-verify compares it",
    )


def _directory(
    path: Path,
    origin: Mapping[str, object],
    modalities: Modalities,
    *,
    weights: bool,
    has_own_adapter: bool = False,
) -> ModelSource:
    refuse_package(path)
    refuse_others(path, weights=weights and not has_own_adapter)
    # First, so that another architecture is called by its name.
    config = _read_config(path, modalities)
    return _source(origin, path, config, weights=weights)


def refuse_others(path: Path, *, weights: bool) -> None:
    """Call what is no checkpoint by its name, and an adapter that is not merged into one.

    Raises
    ------
    CheckpointError
        For a file, a directory without config.json, and, where `weights` are asked for, an adapter.
    """
    if path.exists() and not path.is_dir():
        raise kinds.other_file(path) or CheckpointError(
            f"`{path}` is no directory", hint="give the directory that holds config.json"
        )
    if not path.is_dir():
        return
    has_config = (path / CONFIG_FILE).exists()
    if weights or not has_config:
        kinds.check_adapter(listing(path))
    if not has_config:
        raise kinds.no_config(listing(path))


def refuse_package(path: Path, wanted: str = "the checkpoint that it was made from") -> None:
    """Call a package by its name, where a checkpoint is asked for; `wanted` says which."""
    if (path / abi.PROVENANCE_FILE).is_file() and not (path / CONFIG_FILE).exists():
        raise CheckpointError(
            f"`{path}` is a package, compiled already",
            hint=f"give {wanted}; a package runs in gemma4-chat or gemma4-serve",
        )


def _source(
    origin: Mapping[str, object], path: Path, config: Gemma4Config, *, weights: bool
) -> ModelSource:
    checkpoint = Checkpoint.open(path) if weights else None
    if config.embedding is None:
        _warn_of_base(path)
    config = replace(config, dtype=loaded_dtype(path, config.dtype))
    config = _with_own_head(config, path, checkpoint)
    files = checkpoint_files(path, checkpoint.tensors.values() if checkpoint else None)
    return ModelSource(origin, config, read_generation_config(path), checkpoint, files)


def _warn_of_base(path: Path) -> None:
    if (path / TOKENIZER_FILE).is_file() and read_chat_template(path) is None:
        warn(
            "the checkpoint has no chat template, as base models: its package goes on with texts "
            "and holds no conversation",
            "use gemma4-chat --raw, or /v1/completions of gemma4-serve; for conversations take the "
            "instruction-tuned checkpoint (its name ends in `-it`), or its chat_template.jinja",
        )


def _from_gguf(
    path: Path, directory: Path, modalities: Modalities, tokenizer: Tokenizer, *, weights: bool
) -> ModelSource:
    """A model in GGUF; what other checkpoints have as files is written into `directory`."""
    if path.is_dir():
        kinds.check_adapter(listing(path))
    check_modalities(path, modalities)
    wanted = tokenizer if weights else NO_TEXTS
    found = None if tokenizer.given is None else local_path(tokenizer.given)
    model, origin = open_gguf(path, directory, wanted, found)
    config = _read_config(directory, modalities)
    _warn_of_base(directory)
    checkpoint = checkpoint_of(model, directory) if weights else None
    files = {
        **checkpoint_files(directory, None if checkpoint is None else ()),
        **(model.files if weights else {}),
    }
    return ModelSource(origin, config, read_generation_config(directory), checkpoint, files)


def _with_own_head(config: Gemma4Config, path: Path, checkpoint: Checkpoint | None) -> Gemma4Config:
    """The config with the head that the files hold; as it is if the weights are not there whole."""
    if checkpoint is not None:
        return with_head(config, checkpoint.tensors)
    try:
        values = read_json(path / CONFIG_FILE)
        return with_head(config, dequantised(values, open_tensors(path), is_named=False))
    except CheckpointError:
        return config


def _from_hub(
    model: str,
    revision: str | None,
    modalities: Modalities,
    *,
    weights: bool,
    generation_config: bool,
) -> ModelSource:
    path = hub.fetch_config(model, revision)
    config = _read_config(path, modalities)  # before gigabytes are downloaded
    if weights:
        path = hub.fetch(model, path.name, has_texts=True)
    elif generation_config:
        hub.fetch_generation_config(model, path.name)
    origin = {"kind": "hub", "model": model, "revision": path.name}
    return _source(origin, path, config, weights=weights)


def _with_adapters(source: ModelSource, adapters: Sequence[AdapterSource]) -> ModelSource:
    if not adapters:
        return source
    origin = {**source.origin, "adapters": [dict(one.origin) for one in adapters]}
    files = tuple(one.files for one in adapters)
    if source.checkpoint is None:
        config = config_with(source.config, adapters)
        return replace(source, origin=origin, config=config, adapters=files)
    checkpoint, config = merged(source.checkpoint, source.config, adapters)
    return replace(source, origin=origin, config=config, checkpoint=checkpoint, adapters=files)


@contextlib.contextmanager
def open_source(
    model: str,
    revision: str | None,
    *,
    weights: bool,
    generation_config: bool = True,
    modalities: Modalities = TEXT_ONLY,
    tokenizer: Tokenizer = NO_TEXTS,
    adapters: Sequence[str] = (),
) -> Iterator[ModelSource]:
    """Open a model; `weights` False reads the configs alone.

    `modalities` are those whose sections of the config are read: None for all that it has.
    `adapters` are merged into it, one after the other.

    Without `generation_config`, nothing but `config.json` is downloaded. `tokenizer` is for files
    of GGUF, of which a tokenizer is made or another taken: other checkpoints have theirs.

    Raises
    ------
    CheckpointError, ConfigError
        If there is no such model, or it is damaged or not supported.
    UsageError
        If a preset is asked for its weights, or a revision is given for something not on the hub.
    """
    path = local_path(model)
    known = (*SHIPPED, *preset_names(), *encoder_presets())
    on_hub = model not in known and not path.exists()
    opened = open_adapters(adapters, weights=weights, base=model)
    if revision is not None and not on_hub:
        raise UsageError(
            f"--revision is for models on the hub, `{model}` is none", hint="leave it out"
        )
    if tokenizer.given is not None and not (path.exists() and gguf_files.is_model(path)):
        raise UsageError(
            f"{TOKENIZER_OPTION} is for GGUF files, `{model}` is none: its tokenizer is beside its "
            "weights",
            hint="leave it out",
        )
    if model in SHIPPED:
        with scratch_folder(prefix="gemma4-tiny-") as directory:
            SHIPPED[model](Path(directory))
            made = _directory(Path(directory), {"kind": model}, modalities, weights=weights)
            yield _with_adapters(made, opened)
    elif path.exists() and gguf_files.is_model(path):
        with scratch_folder(prefix="gemma4-gguf-") as directory:
            made = _from_gguf(path, Path(directory), modalities, tokenizer, weights=weights)
            yield _with_adapters(made, opened)
    elif path.exists():
        is_beside = any(one.path.resolve() == path.resolve() for one in opened)
        found = _directory(
            path,
            {"kind": "directory"},
            modalities,
            weights=weights,
            has_own_adapter=is_beside,
        )
        yield _with_adapters(found, opened)
    elif not on_hub:
        if weights:
            raise UsageError(
                f"the preset `{model}` is a config without weights",
                hint=f"add --only library, or compile google/{model}",
            )
        config = Gemma4Config.from_dict(read_json(preset_file(model)), modalities=modalities)
        preset = ModelSource({"kind": "preset", "model": model}, config, {}, None)
        yield _with_adapters(preset, opened)
    elif is_hub_id(model):
        fetched = _from_hub(
            model, revision, modalities, weights=weights, generation_config=generation_config
        )
        yield _with_adapters(fetched, opened)
    else:
        raise CheckpointError(
            f"there is no model `{model}`: no such directory, and no hub id",
            hint=hint_of_id(model)
            or f"give a directory, a hub id like {DEFAULT_MODEL}, or `{TINY}`",
        )
