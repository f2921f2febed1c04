"""The adapters of `--adapter`: found as a drafter is, checked, and merged one after the other."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemma4_compile.checkpoint import hub, kinds
from gemma4_compile.checkpoint.adapter import Adapter, apply_adapter
from gemma4_compile.checkpoint.adapter_config import (
    AdapterConfig,
    ends_with_one,
    read_adapter_config,
)
from gemma4_compile.checkpoint.adapter_merge import is_finite
from gemma4_compile.checkpoint.adapter_names import (
    AdapterTensors,
    check_is_pefts,
    sort_tensors,
)
from gemma4_compile.checkpoint.chat_files import ChatFiles
from gemma4_compile.checkpoint.files import TOKENIZER_FILE, check_place, read_json
from gemma4_compile.checkpoint.hub_id import is_hub_id
from gemma4_compile.checkpoint.kinds import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from gemma4_compile.checkpoint.leftovers import without_leftovers
from gemma4_compile.checkpoint.local_path import local_path
from gemma4_compile.checkpoint.match import Checkpoint, vocabulary_of
from gemma4_compile.checkpoint.safetensors_file import TensorInfo, read_header
from gemma4_compile.checkpoint.spellings import usual_name, usual_tensors
from gemma4_compile.checkpoint.weight_files import listing
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.text.component import TEXT
from gemma4_compile.options.process import warn
from gemma4_compile.system import regular_files
from gemma4_compile.system.regular_files import MAX_TOKENIZER_BYTES

OPTION = "--adapter"
MAX_ADAPTERS = 16
_BLOCK = 1 << 20
_FRONT, _MATRIX = TEXT.prefixes[0], 2
_SHOWN, _SHOWN_LETTERS = 4, 80
_SIZE = re.compile(r"(?<![a-z0-9])(e2b|e4b|12b|26b|31b)(?![a-z0-9])")
_TUNED = re.compile(r"(?<![a-z0-9])it(?![a-z0-9])")


@dataclass(frozen=True)
class AdapterSource:
    """An adapter's files.

    Attributes
    ----------
    name : of the option, in messages
    origin : its entry in provenance; no paths of this machine
    tensors : None when only the config was asked for
    """

    name: str
    path: Path
    origin: Mapping[str, object]
    config: AdapterConfig
    tensors: AdapterTensors | None

    @property
    def files(self) -> dict[str, Path]:
        """What is read of them, by name."""
        names = (ADAPTER_CONFIG, *((ADAPTER_WEIGHTS,) if self.tensors is not None else ()))
        return {name: self.path / name for name in names}


def open_adapters(
    names: Sequence[str], *, weights: bool, base: str | None
) -> tuple[AdapterSource, ...]:
    """Open the adapters that an option names.

    Parameters
    ----------
    names : directories, hub ids or `ID@REVISION`, in the order in which they are merged
    weights : False downloads and reads their configs alone
    base : the model's name as it was given; None where it says nothing

    Raises
    ------
    CheckpointError
        If one is missing, damaged, of a method that is not merged here, or given twice.
    """
    if len(names) > MAX_ADAPTERS:
        raise CheckpointError(
            f"{OPTION} is given {len(names)} times, at most {MAX_ADAPTERS}",
            hint="merge some of them with PEFT first",
        )
    opened: list[AdapterSource] = []
    for name in names:
        with _named(name):
            adapter = _open(name, weights=weights)
        same = next((one for one in opened if _is_same(one, adapter)), None)
        if same is not None:
            raise CheckpointError(
                f"{OPTION} {name}: the same adapter as {same.name}, which would be added twice",
                hint="leave one of them out",
            )
        _warn_of_base(adapter, base)
        opened.append(adapter)
    return tuple(opened)


def _is_same(one: AdapterSource, other: AdapterSource) -> bool:
    return one.path == other.path or (
        one.tensors is not None and one.origin["weights"] == other.origin["weights"]
    )


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Says in errors whose files they are of."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{OPTION} {name}: {error}", hint=error.hint) from error


def _open(name: str, *, weights: bool) -> AdapterSource:
    path = local_path(name)
    hub_id, _, pinned = name.partition("@")
    origin: dict[str, object] = {"kind": "directory"}
    if path.exists():
        _check_directory(path)
    elif is_hub_id(hub_id):
        path = hub.fetch_adapter(hub_id, pinned or None, weights=False)
        origin = {"kind": "hub", "model": hub_id, "revision": path.name}
    else:
        raise CheckpointError(
            "no such directory, and no hub id",
            hint="give the folder that holds adapter_config.json, or a hub id like "
            "NAME/ADAPTER or NAME/ADAPTER@REVISION",
        )
    check_place(path / ADAPTER_CONFIG)
    config = read_adapter_config(path)
    origin["config"] = _digest(path / ADAPTER_CONFIG)
    if config.base is not None and is_hub_id(config.base):
        origin["base"] = config.base
    tensors = None
    if weights:
        if origin["kind"] == "hub":  # what the config says is not merged is not downloaded
            hub.fetch_adapter(hub_id, path.name, weights=True)
        file = path / ADAPTER_WEIGHTS
        if not file.exists():
            raise kinds.no_adapter(listing(path))
        check_place(file)
        tensors = _sorted(file)
        origin["weights"] = _digest(file)
    return AdapterSource(f"{OPTION} {name}", path, origin, config, tensors)


def _check_directory(path: Path) -> None:
    if path.is_file() and path.suffix.lower() == ".gguf":
        raise CheckpointError(
            f"`{path.name}` is a GGUF file, and adapters are read as PEFT saves them",
            hint="give the folder of the adapter that was converted, with adapter_config.json",
        )
    if not path.is_dir():
        raise kinds.other_file(path) or CheckpointError(
            "this is no directory", hint="give the folder that holds adapter_config.json"
        )
    if not (path / ADAPTER_CONFIG).exists():
        found = listing(path)
        is_listed = ADAPTER_CONFIG in found.names
        raise kinds.lost_link(found, ADAPTER_CONFIG) if is_listed else kinds.no_adapter(found)


def _sorted(file: Path) -> AdapterTensors:
    header = without_leftovers(read_header(file))
    check_is_pefts(header)
    for tensor in header.values():
        if 0 in tensor.shape or not tensor.shape:
            raise CheckpointError(
                f"tensor `{printable(tensor.name)}` has shape {tensor.shape}: it was saved without "
                "its values, as DeepSpeed's and FSDP's parts are",
                hint="save the adapter again with the parts gathered",
            )
    tensors = sort_tensors(header)
    for factors in tensors.factors.values():
        factors.pair()
    for tensor in header.values():
        if ".lora_" in tensor.name and not is_finite(tensor):
            raise CheckpointError(
                f"tensor `{printable(tensor.name)}` holds values that are no finite numbers",
                hint="the training went astray, or the file is damaged: take an earlier checkpoint "
                "of it",
            )
    return tensors


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with regular_files.open_regular(file) as content:
            while block := content.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise CheckpointError(f"cannot read `{file.name}`: {error.strerror}") from error
    return f"sha256:{digest.hexdigest()}"


def _traits(name: str) -> tuple[str | None, bool] | None:
    """Size of a Gemma 4 by its name, and whether it is tuned for instructions."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    size = _SIZE.search(last)
    if size is None and "gemma" not in last:
        return None
    return size[1] if size else None, _TUNED.search(last) is not None


def _warn_of_base(adapter: AdapterSource, base: str | None) -> None:
    """Name a base model that is another one by its name; its shapes may fit all the same."""
    trained = adapter.config.base
    if trained is None or base is None:
        return
    expected, found = _traits(trained), _traits(base)
    if expected is None or found is None or expected == found:
        return
    warn(
        f"{adapter.name} was trained on `{printable(trained[:_SHOWN_LETTERS])}`, and is merged "
        f"into `{printable(base[:_SHOWN_LETTERS])}`",
        "if the two have other weights, replies are worse than those of either: give the model "
        "that it was trained on",
    )


def merged(
    checkpoint: Checkpoint, config: Gemma4Config, adapters: Sequence[AdapterSource]
) -> tuple[Checkpoint, Gemma4Config]:
    """A checkpoint with adapters merged into it, one after the other, and its config.

    Raises
    ------
    CheckpointError
        If one does not fit the model.
    """
    tensors = checkpoint.tensors
    for source in adapters:
        assert source.tensors is not None, "opened with their weights"
        adapter = Adapter(source.name, source.config, source.tensors)
        _warn_of_missing(adapter, usual_tensors(tensors, _FRONT), config)
        tensors, config = apply_adapter(tensors, config, adapter)
        with _named(source.name.removeprefix(f"{OPTION} ")):
            _warn_of_chat(source, checkpoint, config.vocab_size)
    return replace(checkpoint, tensors=tensors), config


def _warn_of_missing(
    adapter: Adapter, tensors: Mapping[str, TensorInfo], config: Gemma4Config
) -> None:
    """Name matrices of the decoder that were to be trained, and of which the adapter has nothing.

    PEFT leaves such as they are, with a warning: a part of the file is lost, or the model has more
    layers than the one that was trained.
    """
    targets = adapter.config.targets
    if targets is None or adapter.config.is_partial:
        return
    found = {
        usual_name(f"{module}.weight", _FRONT)
        for module in (
            *(factors.module for factors in adapter.tensors.factors.values()),
            *(name.removesuffix(".weight") for name in adapter.tensors.whole),
            *adapter.tensors.rows,
        )
    }
    missing = [
        name
        for name, tensor in tensors.items()
        if name.startswith(_FRONT)
        and len(tensor.shape) == _MATRIX
        and name not in found
        and ends_with_one(name.removesuffix(".weight"), targets)
        and not TEXT.is_unused(TEXT.source_name(name, _FRONT), config)
    ]
    if missing:
        warn(
            f"{adapter.name} has nothing for `{printable(missing[0])}` ({len(missing)} in all), "
            "which `target_modules` of adapter_config.json names: such matrices stay as they are",
            "if they were trained, the adapter is incomplete; or it was trained on a model with "
            "fewer layers",
        )


def _warn_of_chat(source: AdapterSource, checkpoint: Checkpoint, vocab_size: int) -> None:
    """Name a chat template and tokens of the adapter's folder that the model has not."""
    own, model = ChatFiles.read(source.path).template, ChatFiles.read(checkpoint.path).template
    if own is not None and own != model:
        warn(
            f"{source.name} comes with another chat template than the model's, which is used",
            "if it was trained with its own, copy that one (chat_template.jinja, or "
            "tokenizer_config.json where it is there) into the model's folder",
        )
    files = [one / TOKENIZER_FILE for one in (source.path, checkpoint.path)]
    if not all(file.is_file() for file in files):
        return
    tokens, known = (_vocabulary(file) for file in files)
    others = [token for token, i in tokens.items() if known.get(token) != i]
    if others:
        shown = ", ".join(repr(token[:_SHOWN_LETTERS]) for token in others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} others" if len(others) > _SHOWN else ""
        beyond = sum(type(i) is int and i >= vocab_size for i in tokens.values())
        warn(
            f"{source.name} comes with another tokenizer than the model's, which is used: {shown}"
            f"{more} {'are' if len(others) > 1 else 'is'} not the same there"
            + (f", {beyond} beyond the model's {vocab_size} tokens" if beyond else ""),
            "if it was trained with its own, copy its tokenizer files into the model's folder",
        )


def _vocabulary(file: Path) -> dict[str, object]:
    values = read_json(file, MAX_TOKENIZER_BYTES, 1 << 24)
    vocabulary, added = vocabulary_of(values, file.name)
    return {**vocabulary, **{str(token.get("content")): token.get("id") for token in added}}


def config_with(config: Gemma4Config, adapters: Sequence[AdapterSource]) -> Gemma4Config:
    """The config of a model whose weights are not read, as far as adapters' configs say it.

    A head or an embedding that was trained as a copy of its own is no more the other.
    """
    for adapter in adapters:
        is_copied = any(adapter.config.is_saved(name) for name in ("lm_head", "embed_tokens"))
        if config.ties_head and is_copied and not adapter.config.ties:
            config = replace(config, ties_head=False)
    return config
