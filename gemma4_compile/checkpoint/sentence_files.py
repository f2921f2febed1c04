"""What sentence-transformers' files in a checkpoint say of an encoder: its pooling, its prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma4_compile.checkpoint.files import check_place, read_json, read_text
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
_MEAN = "pooling_mode_mean_tokens"


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
    return CheckpointError(
        f"`{PROMPTS_FILE}` is damaged: {what}", hint="download or save the checkpoint again"
    )


def _check_modules(directory: Path) -> None:
    """Refuse what follows the encoder and is not compiled."""
    if not (directory / MODULES_FILE).is_file():
        return
    try:  # a list, which the reader of objects does not take
        modules = parse_object(f'{{"modules": {read_text(directory / MODULES_FILE)}}}')["modules"]
    except ValueError as error:
        raise CheckpointError(f"`{MODULES_FILE}` is damaged: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        raise CheckpointError(f"`{MODULES_FILE}` is damaged: expected a list of modules")
    kinds = [str(module.get("type")).rsplit(".", 1)[-1] for module in modules]
    for kind, module in zip(kinds, modules, strict=True):
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


def _check_pooling(directory: Path, folder: str) -> None:
    """Refuse vectors that are not the mean of all of a text's rows."""
    parts = Path(folder).parts
    if not parts or Path(folder).is_absolute() or ".." in parts or "\0" in folder:
        raise CheckpointError(f"`{MODULES_FILE}`: `{printable(folder[:40])}` is no folder of it")
    file = directory / folder / POOLING_FILE
    check_place(file, directory)  # in the hub's cache it is a link to the blobs
    values = read_json(file)
    modes = {name for name, on in values.items() if name.startswith("pooling_mode_") and on is True}
    is_mean = values.get("pooling_mode") == "mean" if not modes else modes == {_MEAN}
    if not is_mean or values.get("include_prompt") is False:
        raise CheckpointError(
            f"`{folder}/{POOLING_FILE}`: expected the mean of all tokens, the prompt's among them; "
            f"found {', '.join(sorted(modes)) or values.get('pooling_mode')}",
            hint="other ways of pooling are not compiled",
        )
