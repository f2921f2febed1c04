"""Kinds of files that are no whole checkpoint in safetensors, by their names.

What is read is decided in `match`. This says what was found instead, and the way out. The names
are a folder's, or those of a repository of the hub before anything is downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.checkpoint.file_kinds import FILE_KINDS
from gemma4_compile.checkpoint.files import TOKENIZER_FILE
from gemma4_compile.checkpoint.hub_id import hint_of_id
from gemma4_compile.errors import CheckpointError, printable

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

_MAX_FILES = 4096  # of a folder and its folders that are looked at
_SHOWN_LETTERS = 120


@dataclass(frozen=True)
class Listing:
    """What a folder, or a repository of the hub, holds.

    Attributes
    ----------
    where : its name in messages
    names : of its files, relative, with `/`; of a folder those of its own folders, too
    read : reads a JSON file of it
    is_hub : it is a repository of the hub
    """

    where: str
    names: frozenset[str]
    read: Callable[[str], Mapping[str, object]]
    is_hub: bool = False

    @property
    def has_weights(self) -> bool:
        """Return whether there are weights where they are looked for."""
        return SINGLE_FILE in self.names or INDEX_FILE in self.names


def folder_names(path: Path) -> frozenset[str]:
    """Names of the files of a folder and of the folders in it; of many, the first ones found."""
    return frozenset(name for name, _ in zip(_walk(path), range(_MAX_FILES), strict=False))


def _walk(path: Path) -> Iterator[str]:
    folders = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                yield entry.name
    for folder in sorted(folders)[:_MAX_FILES]:
        try:
            with os.scandir(path / folder) as entries:
                yield from (f"{folder}/{entry.name}" for entry in entries if not entry.is_dir())
        except OSError:  # somebody else's: it is only looked at for a message
            continue


_ADAPTER = re.compile(
    r"adapter_config\.json|adapter_model.*\.(safetensors|bin)|adapters\.(safetensors|npz)"
)
MERGE_HINT = (
    "merge it: load it with AutoPeftModelForCausalLM of peft, call merge_and_unload() and "
    "save_pretrained(NEW_FOLDER), save the tokenizer there"
)


def check_adapter(listing: Listing) -> None:
    """Refuse an adapter that is not merged, alone or beside the model that it changes.

    Raises
    ------
    CheckpointError
        Naming it, its base model and how to merge it.
    """
    found = sorted(name for name in listing.names if _ADAPTER.fullmatch(name))
    if not found:
        return
    config: Mapping[str, object] = {}
    if ADAPTER_CONFIG in listing.names:
        config = listing.read(ADAPTER_CONFIG)
    is_mlx = "adapters.safetensors" in found or "fine_tune_type" in config
    named = config.get("fine_tune_type" if is_mlx else "peft_type")
    what = "adapter"
    if isinstance(named, str):
        what = f"{printable(named[:20]).upper().replace('LORA', 'LoRA')} adapter"
    base = config.get("model" if is_mlx else "base_model_name_or_path")
    of_base = f", for `{printable(base[:_SHOWN_LETTERS])}`" if isinstance(base, str) else ""
    article = "an" if what == "adapter" else "a"
    beside = " beside a model, which is not merged into it" if listing.has_weights else ""
    merge = (
        "merge it with `mlx_lm.fuse --model BASE --adapter-path FOLDER --dequantize`"
        if is_mlx
        else MERGE_HINT
    )
    rest = f"; if the model has it merged already, remove {found[0]}" if listing.has_weights else ""
    model = listing.where if listing.has_weights else "MODEL"
    give = f"give the model, and this with `gemma4-compile {model} --adapter {listing.where}`; or "
    raise CheckpointError(
        f"`{listing.where}` holds {article} {what}{beside} (`{found[0]}`){of_base}",
        hint=f"{give if config.get('peft_type') == 'LORA' else ''}{merge}, and compile that{rest}",
    )


_ADAPTER_SHARD = re.compile(r"adapter_model-\d+-of-\d+\.safetensors")
_JOIN_SHARDS = (
    'python -c "import glob, safetensors.torch as s; w = {}; [w.update(s.load_file(f)) for f in '
    "glob.glob('adapter_model-*.safetensors')]; s.save_file(w, 'adapter_model.safetensors')\""
)


def no_adapter(listing: Listing) -> CheckpointError:
    """The error for a folder or a repository that is no adapter of PEFT, by what it holds."""
    inner = _last_folder(listing, lambda name: name == ADAPTER_CONFIG)
    if ADAPTER_CONFIG not in listing.names and inner is not None:
        last, more = inner
        give = _that_folder(listing, last, "give")
        return CheckpointError(
            f"`{listing.where}` is no adapter itself; its folder `{last}` holds one{more}",
            hint=give,
        )
    shards = sorted(name for name in listing.names if _ADAPTER_SHARD.fullmatch(name))
    if shards and ADAPTER_CONFIG in listing.names:
        where = "the folder" if not listing.is_hub else "the folder that it was downloaded to"
        shown = printable(shards[0][:_SHOWN_LETTERS])
        return CheckpointError(
            f"the adapter of `{listing.where}` is in parts (`{shown}` is one of {len(shards)}), "
            f"expected {ADAPTER_WEIGHTS}, which PEFT reads",
            hint=f"join them in {where}, with safetensors and torch: `{_JOIN_SHARDS}`",
        )
    named = _of_cache(listing) or _other_kind(listing) or _other_adapter(listing)
    missing = ADAPTER_WEIGHTS if ADAPTER_CONFIG in listing.names else ADAPTER_CONFIG
    return named or CheckpointError(
        f"`{missing}` is missing from `{listing.where}`",
        hint="save the adapter whole, with PEFT's save_pretrained; a whole model is given in place "
        "of MODEL",
    )


def lost_link(listing: Listing, name: str) -> CheckpointError:
    """The error for a file that is listed, and not there."""
    return CheckpointError(
        f"`{name}` of `{listing.where}` is a link to a file that is not there",
        hint="download it again, or correct the link; `cp -rL` copies what links lead to",
    )


def _other_adapter(listing: Listing) -> CheckpointError | None:
    """The error for what lacks one of an adapter's files, and has another in its place."""
    if ADAPTER_CONFIG not in listing.names:
        if CONFIG_FILE not in listing.names or ADAPTER_WEIGHTS in listing.names:
            return None
        return CheckpointError(
            f"`{listing.where}` holds a model (`{CONFIG_FILE}`), and no adapter",
            hint="give it in place of MODEL; its adapter is the folder with adapter_config.json",
        )
    if ADAPTER_WEIGHTS in listing.names:
        return lost_link(listing, ADAPTER_WEIGHTS)
    others = sorted(n for n in listing.names if n.endswith(".safetensors") and "/" not in n)
    if not others:
        return None
    shown = printable(others[0][:_SHOWN_LETTERS])
    return CheckpointError(
        f"`{listing.where}` has no {ADAPTER_WEIGHTS}, but `{shown}`",
        hint=f"if that is the adapter, name it {ADAPTER_WEIGHTS}; a whole model is given in place "
        "of MODEL",
    )


_GGUF = re.compile(r"(?:.*/)?(?!mmproj)[^/]+\.gguf", re.IGNORECASE)
_READ_GGUF = ("Q4_0", "Q8_0", "BF16", "F16", "F32")  # in the order in which they are proposed


def _gguf(listing: Listing) -> CheckpointError | None:
    """The error that names a file in GGUF which is to be given itself."""
    found = [name for name in listing.names if _GGUF.fullmatch(name)]
    if not found:
        return None

    def place(name: str) -> tuple[int, int, str]:
        kinds = (index for index, kind in enumerate(_READ_GGUF) if kind in name.upper())
        return next(kinds, len(_READ_GGUF)), name.count("/"), name

    best = printable(min(found, key=place)[:_SHOWN_LETTERS])
    which = "" if place(best)[0] < len(_READ_GGUF) else f", one of {', '.join(_READ_GGUF)}"
    folder, _, name = best.rpartition("/")
    give = f"give the file{which}: `{listing.where}/{best}`"
    if listing.is_hub:
        all_parts = re.sub(r"-\d{5}-of-(\d{5}\.gguf)$", r"-*-of-\1", best, flags=re.IGNORECASE)
        wanted = best if all_parts == best else f'--include "{all_parts}"'
        give = f"download the file{which}: `hf download {listing.where} {wanted} --local-dir "
        give += f"FOLDER`, and compile FOLDER/{best}"
    more = f" in `{folder}`" if folder else ""
    return CheckpointError(
        f"`{listing.where}` has GGUF files, such as `{name}`{more}, and no safetensors checkpoint",
        hint=give,
    )


def no_config(listing: Listing) -> CheckpointError:
    """The error for a folder or a repository without a config.json, by what it holds."""
    if CONFIG_FILE in listing.names and not listing.is_hub:
        return lost_link(listing, CONFIG_FILE)
    return (
        _of_cache(listing)
        or _in_folder(listing, CONFIG_FILE)
        or _adapter_in_folder(listing)
        or _gguf(listing)
        or _other_kind(listing)
        or CheckpointError(
            f"`{CONFIG_FILE}` is missing from `{listing.where}`",
            hint="the weights alone do not say what model they are of: add config.json and the "
            "tokenizer files of the model that was trained"
            if listing.has_weights or any(n.endswith(".safetensors") for n in listing.names)
            else "give a whole checkpoint in the format of transformers",
        )
    )


def _of_cache(listing: Listing) -> CheckpointError | None:
    """The error for a repository's folder in the hub's cache, whose files are a folder deeper."""
    if listing.is_hub or not any(name.startswith("refs/") for name in listing.names):
        return None
    return CheckpointError(
        f"`{listing.where}` is a folder of the hub's cache, not a checkpoint itself",
        hint=f"{hint_of_id(listing.where) or 'give its hub id'}; or give the folder of a commit "
        f"below `{listing.where}/snapshots`",
    )


_OTHER_INDEX = re.compile(r"[^/]+\.index(\.[^/]+)?\.json")


def no_weights(listing: Listing) -> CheckpointError:
    """The error for a config without weights beside it, by what there is."""
    lost = next((name for name in (SINGLE_FILE, INDEX_FILE) if name in listing.names), None)
    if lost is not None:  # listed, and not there
        return lost_link(listing, lost)
    others = sorted(n for n in listing.names if n.endswith(".safetensors") and "/" not in n)
    others = [name for name in others if not name.startswith(("optimizer", "adapter"))]
    if others:
        shards = [name for name in others if re.search(r"-\d+-of-\d+\.", name)]
        index = min((name for name in listing.names if _OTHER_INDEX.fullmatch(name)), default="")
        if index:
            return CheckpointError(
                f"`{listing.where}` has no {INDEX_FILE}, but `{printable(index[:_SHOWN_LETTERS])}`",
                hint=f"name it {INDEX_FILE}, where the shards that it lists are the whole model",
            )
        return CheckpointError(
            f"`{listing.where}` has safetensors files, but neither {SINGLE_FILE} nor {INDEX_FILE}",
            hint=f"download {INDEX_FILE} too, which says what is in `{shards[0]}`"
            if shards
            else f"if `{others[0]}` is the whole model, name it {SINGLE_FILE}; otherwise save the "
            "model with transformers' save_pretrained",
        )
    in_folder = _in_folder(listing, SINGLE_FILE, INDEX_FILE)
    return (
        (None if in_folder else _adapter_in_folder(listing))
        or _gguf(listing)
        or _other_kind(listing)
        or in_folder
        or CheckpointError(
            f"`{listing.where}` has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}",
            hint="save the model with transformers' save_pretrained",
        )
    )


_SLOW_TOKENIZERS = ("tokenizer.model", "spiece.model", "tokenizer.model.v3")


def no_tokenizer(listing: Listing) -> CheckpointError:
    """The error for a checkpoint without a tokenizer.json, by what else there is."""
    if TOKENIZER_FILE in listing.names:
        return lost_link(listing, TOKENIZER_FILE)
    slow = next((name for name in _SLOW_TOKENIZERS if name in listing.names), None)
    inner = _last_folder(listing, lambda name: name == TOKENIZER_FILE)
    missing = f"`{TOKENIZER_FILE}` is missing from `{listing.where}`"
    folder = "FOLDER" if listing.is_hub else listing.where
    download = f"`hf download {listing.where} --local-dir FOLDER`, then " if listing.is_hub else ""
    if inner is not None:
        return CheckpointError(
            f"{missing}; its folder `{inner[0]}` holds one",
            hint=f"{download}copy the files of `{inner[0]}` beside config.json",
        )
    if slow is not None:
        return CheckpointError(
            f"{missing}, which has `{slow}` alone",
            hint=f'{download}make it, with transformers and sentencepiece: `python -c "from '
            f"transformers import AutoTokenizer as A; A.from_pretrained('{folder}')"
            f".save_pretrained('{folder}')\"`",
        )
    return CheckpointError(
        missing,
        hint=f"{download}save the tokenizer that the model was trained with there, whole: of a "
        "fine-tune it is that of the model that it was trained from",
    )


def other_file(path: Path) -> CheckpointError | None:
    """The error for a file that is given in place of a checkpoint; None if it says nothing."""
    listing = Listing(str(path), frozenset({path.name}), lambda name: {})
    kind = next((kind for kind in FILE_KINDS if kind.first(listing.names)), None)
    return None if kind is None else CheckpointError(f"`{path}` is {kind.what}", hint=kind.hint)


def _other_kind(listing: Listing) -> CheckpointError | None:
    for kind in FILE_KINDS:
        name = kind.first(listing.names)
        if name is not None:
            shown = printable(name[:_SHOWN_LETTERS])
            return CheckpointError(f"`{shown}` of `{listing.where}` is {kind.what}", hint=kind.hint)
    return None


def _last_folder(listing: Listing, is_one: Callable[[str], object]) -> tuple[str, str] | None:
    """The folder, the last of `checkpoint-N`, that has such a file, and how many others do."""
    parts = (name.rpartition("/") for name in listing.names)
    folders = {folder for folder, _, name in parts if folder and is_one(name)}
    if not folders:
        return None

    def number(folder: str) -> tuple[int, str]:
        digits = re.search(r"(\d{1,12})$", folder)
        return (int(digits[1]) if digits else -1), folder

    last = printable(max(folders, key=number)[:_SHOWN_LETTERS])
    others = len(folders) - 1
    more = f", as {others} others do" if others > 1 else ", as one other does" if others else ""
    return last, more


def _that_folder(listing: Listing, folder: str, verb: str) -> str:
    """The hint that leads to a folder below; `verb` says what is done with it once it is here."""
    if not listing.is_hub:
        return f"give that directory: `{listing.where}/{folder}`"
    download = f'`hf download {listing.where} --include "{folder}/*" --local-dir FOLDER`'
    return f"{download}, then {verb} FOLDER/{folder}"


def _in_folder(listing: Listing, *files: str) -> CheckpointError | None:
    """The error that names the folder which has one of these files."""
    found = _last_folder(listing, files.__contains__)
    if found is None:
        return None
    last, more = found
    give = _that_folder(listing, last, "compile")
    return CheckpointError(
        f"`{listing.where}` is no checkpoint itself; its folder `{last}` holds one{more}", hint=give
    )


def _adapter_in_folder(listing: Listing) -> CheckpointError | None:
    """The error that names the folder which has an adapter, where training left no model."""
    found = _last_folder(listing, _ADAPTER.fullmatch)
    if found is None:
        return None
    last, more = found
    return CheckpointError(
        f"`{listing.where}` is no checkpoint itself; its folder `{last}` holds an adapter{more}",
        hint=f"give the model, and this with --adapter {listing.where}/{last}; or {MERGE_HINT}, "
        "and compile that",
    )


_QUANTISED_NAMES = (
    (r"\.(qweight|qzeros|g_idx)", "GPTQ or AWQ"),
    (
        r"\.weight\.(absmax|quant_map|nested_\w+|quant_state\.\w+)|\.(SCB|weight_format)",
        "bitsandbytes",
    ),
    (r"\.(weight_packed|weight_shape|weight_zero_point)", "compressed-tensors"),
    (r"\.(weight_scale|weight_scale_inv|input_scale)", "FP8 or compressed-tensors"),
    (r"\.(weight_scale_2|pre_quant_scale|_amax)", "ModelOpt"),
    (r"\.weight\._(data|scale|shift)", "quanto"),
    (r"\.(scales|biases)", "MLX"),
    (r"\.(qscale|trellis|suh|svh|q_scale|q_perm)", "EXL2 or EXL3"),
    (r"_(blocks|scales)", "MXFP4"),
)


def quantised_by(tensor: str) -> str | None:
    """Who quantised a checkpoint that has a tensor of this name; None for any other name."""
    found = (who for pattern, who in _QUANTISED_NAMES if re.search(f"(?:{pattern})$", tensor))
    return next(found, None)
