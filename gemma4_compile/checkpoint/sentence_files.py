"""What sentence-transformers' files in a checkpoint say of an encoder: its pooling, its prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.checkpoint.files import (
    TOKENIZER_CONFIG_FILE,
    check_place,
    read_json,
    read_text,
)
from gemma4_compile.checkpoint.json_text import parse_object
from gemma4_compile.errors import CheckpointError, printable
from gemma4_compile.options.process import warn

MODULES_FILE = "modules.json"
PROMPTS_FILE = "config_sentence_transformers.json"
POOLING_FILE = "config.json"  # of the folder of a `Pooling`
TRANSFORMER_FILE = "sentence_bert_config.json"
SENTENCE_FILES = (MODULES_FILE, PROMPTS_FILE, TRANSFORMER_FILE, f"*_Pooling/{POOLING_FILE}")
MAX_PROMPTS, MAX_PROMPT_CHARS = 256, 4096

PROMPTS: Mapping[str, str] = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "question answering": "task: question answering | query: ",
    "fact checking": "task: fact checking | query: ",
    "code retrieval": "task: code retrieval | query: ",
    "classification": "task: classification | query: ",
    "clustering": "task: clustering | query: ",
    "sentence similarity": "task: sentence similarity | query: ",
}
"""What the model card puts in front of a text by its task, for a checkpoint without a file."""

_KNOWN = ("Transformer", "Pooling", "Normalize")
_OF_TRAINING = "Dropout"
_AGAIN = "download or save the checkpoint again"
_FLAG = "pooling_mode_"  # of earlier versions, which have one of each mode
_MEAN = "mean"


@dataclass(frozen=True)
class Prompts:
    """What is put in front of a text.

    Attributes
    ----------
    by_task : by the name of a task
    default : the task of a text of which none is named; None for nothing in front of it
    """

    by_task: Mapping[str, str]
    default: str | None = None


def read_prompts(directory: Path) -> Prompts:
    """The prompts of a checkpoint, whose vectors must be made as they are here.

    Raises
    ------
    CheckpointError
        If a file is damaged, or its vectors are no means of a text's rows, projected in the model.
    """
    _check_modules(directory)
    _check_case(directory)
    if not (directory / PROMPTS_FILE).is_file():
        return Prompts(PROMPTS)
    values = read_json(directory / PROMPTS_FILE)
    given = values.get("prompts")
    found = {} if given is None else given
    if not isinstance(found, dict) or len(found) > MAX_PROMPTS:
        raise _damaged(f"expected up to {MAX_PROMPTS} `prompts` by their tasks")
    prompts = {name: "" if text is None else text for name, text in found.items()}
    for name, text in prompts.items():
        if not isinstance(text, str) or len(text) > MAX_PROMPT_CHARS:
            raise _damaged(f"prompt `{printable(name[:40])}` is no text")
    default = values.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise _damaged(f"`default_prompt_name` {str(default)[:40]!r} is none of the prompts")
    return Prompts(prompts or PROMPTS, default)


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(f"`{PROMPTS_FILE}` is damaged: {what}", hint=_AGAIN)


def longest_text(directory: Path) -> int | None:
    """Tokens of a text that sentence-transformers reads, which leaves out what is beyond.

    None where no file says it. CheckpointError if a file is damaged.
    """
    for file, key in (
        (TRANSFORMER_FILE, "max_seq_length"),
        (TOKENIZER_CONFIG_FILE, "model_max_length"),
    ):
        given = read_json(directory / file).get(key) if (directory / file).is_file() else None
        if given is None:
            continue
        if (
            not isinstance(given, int | float)
            or isinstance(given, bool)
            or not 1 <= given < math.inf
        ):
            raise CheckpointError(
                f"`{file}`: `{key}` is {printable(str(given)[:40])!r}, expected how many tokens a "
                "text has at most",
                hint="correct it, or leave it out",
            )
        return int(given)
    return None


def pooling_files(directory: Path) -> tuple[str, ...]:
    """The files of poolings that `modules.json` names, by their names below the directory.

    Where it is damaged none: `read_prompts` says so.
    """
    try:
        found = _modules(directory)
    except CheckpointError:
        return ()
    folders = [str(module.get("path")) for kind, module in found if kind == "Pooling"]
    return tuple(f"{folder}/{POOLING_FILE}" for folder in folders if _is_folder(folder))


def _modules(directory: Path) -> list[tuple[str, Mapping[str, object]]]:
    """The modules of `modules.json` with their kinds; none where there is no such file."""
    if not (directory / MODULES_FILE).is_file():
        return []
    try:  # a list, which the reader of objects does not take
        modules = parse_object(f'{{"modules": {read_text(directory / MODULES_FILE)}}}')["modules"]
    except ValueError as error:
        raise CheckpointError(f"`{MODULES_FILE}` is damaged: {error}", hint=_AGAIN) from error
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise CheckpointError(
            f"`{MODULES_FILE}` is damaged: expected a list of modules", hint=_AGAIN
        )
    found = [(str(module.get("type")).rsplit(".", 1)[-1], module) for module in modules]
    return [(kind, module) for kind, module in found if kind != _OF_TRAINING]


def _check_modules(directory: Path) -> None:
    """Refuse what follows the encoder and is not compiled."""
    if not (directory / MODULES_FILE).is_file():
        return
    modules = _modules(directory)
    kinds = [kind for kind, _ in modules]
    for kind, module in modules:
        if kind not in _KNOWN:
            raise CheckpointError(
                f"`{MODULES_FILE}`: a module `{printable(kind[:40])}` behind the encoder is not "
                f"compiled; expected {', '.join(_KNOWN)}",
                hint="EmbeddingGemma 2 has its projection in the model itself",
            )
        if kind == "Pooling":
            _check_pooling(directory, str(module.get("path")))
    _check_order(kinds)
    if "Normalize" not in kinds:
        warn(
            f"`{MODULES_FILE}` has no Normalize: sentence-transformers' vectors of this checkpoint "
            "have any length, and a package's have length 1",
            "cosines are the same; products and distances of the two are not to be mixed",
        )


def _check_order(kinds: list[str]) -> None:
    """Refuse vectors of other steps: a package's are one mean of rows, normalised behind it."""
    places = [_KNOWN.index(kind) for kind in kinds]
    if places != sorted(places) or kinds.count("Pooling") > 1:
        raise CheckpointError(
            f"`{MODULES_FILE}`: expected {', '.join(_KNOWN)} in this order, one Pooling at most; "
            f"found {', '.join(kinds)}",
            hint="sentence-transformers' vectors of this checkpoint are others than a package's",
        )


def _check_case(directory: Path) -> None:
    """Refuse texts in small letters: those of a package are read as they are."""
    if not (directory / TRANSFORMER_FILE).is_file():
        return
    if read_json(directory / TRANSFORMER_FILE).get("do_lower_case"):
        raise CheckpointError(
            f"`{TRANSFORMER_FILE}`: expected `do_lower_case` false, found true",
            hint="a package reads texts as they are: make them small before, and set it to false",
        )


def _is_folder(name: str) -> bool:
    """Return whether this is the name of a folder below a checkpoint's."""
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts and "\0" not in name


def _check_pooling(directory: Path, folder: str) -> None:
    """Refuse vectors that are not the mean of all of a text's rows."""
    if not _is_folder(folder):
        raise CheckpointError(
            f"`{MODULES_FILE}`: `{printable(folder[:40])}` is no folder of the checkpoint",
            hint=_AGAIN,
        )
    file = directory / folder / POOLING_FILE
    check_place(file, directory)  # in the hub's cache it is a link to the blobs
    values = read_json(file)
    modes = _modes(values)
    if modes != [_MEAN] or values.get("include_prompt") is False:
        raise CheckpointError(
            f"`{printable(folder[:40])}/{POOLING_FILE}`: expected the mean of all tokens, the "
            f"prompt's among them; found {printable(', '.join(modes)[:200])}",
            hint="other ways of pooling are not compiled",
        )


def _modes(values: Mapping[str, object]) -> list[str]:
    """The modes of a pooling, whose vectors stand one behind the other; the mean where none is."""
    given = values.get("pooling_mode")
    if given is None:
        given = [name for name, on in values.items() if name.startswith(_FLAG) and on]
        return [_MEAN if name == f"{_FLAG}{_MEAN}_tokens" else name for name in given] or [_MEAN]
    return list(map(str, given)) if isinstance(given, list) else [str(given)]
