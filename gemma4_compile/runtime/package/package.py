"""Opens a package directory for the native runtime: configs, tokenizer, template, weights."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from tokenizers import Tokenizer

from gemma4_compile import abi
from gemma4_compile.confined.conversation import ConversationError, load_tokenizer
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.package.artifacts import (
    ChatConfig,
    Provenance,
    TensorCache,
    read_artifact,
)
from gemma4_compile.package.fields import Fields
from gemma4_compile.package.interface import DEVICE, DRAFTER, embeds
from gemma4_compile.package.libraries import LibraryRecord
from gemma4_compile.runtime.package.choice import choose_library, of_library
from gemma4_compile.runtime.package.conversation_check import check_conversation
from gemma4_compile.runtime.package.integrity import (
    ByteCount,
    Check,
    check_files,
    check_manifest,
    drafter_parameters,
    library_parameters,
)
from gemma4_compile.runtime.package.no_package import no_package
from gemma4_compile.runtime.package.stored_weights import StoredWeight, open_shard
from gemma4_compile.runtime.sampling.sampling import PENALTIES, SamplingOptions
from gemma4_compile.system.regular_files import MAX_JSON_BYTES, read_regular
from gemma4_compile.template.chat_template import (
    DEFAULT,
    TOOL_USE,
    ChatTemplate,
    special_tokens,
    templates_of,
)
from gemma4_compile.types import Array, JsonObject

_log = logging.getLogger(__name__)

_COMPILE_AGAIN = "compile the package again"


def read_provenance(directory: Path) -> Provenance:
    """Provenance of a package; ArtifactError if there is no package at `directory`."""
    if (directory / abi.PROVENANCE_FILE).exists():
        return Provenance.from_json(read_artifact(directory / abi.PROVENANCE_FILE))
    raise no_package(directory)


def check_whole(directory: Path, provenance: Provenance) -> None:
    """ArtifactError for a partial build."""
    library = provenance.library
    if library is not None and abi.TENSOR_CACHE_FILE in provenance.files:
        return
    missing = "library" if library is None else "weights"
    raise ArtifactError(
        f"`{directory}` is a partial build, without {missing}",
        hint=f"build the rest: gemma4-compile with all options as before, --only {missing} "
        f"and -o {directory}",
    )


PlacedT = TypeVar("PlacedT")


@dataclass(frozen=True)
class Package:
    """A package for this machine, its JSON files read and checked.

    Attributes
    ----------
    target : what its library was compiled for
    device : what it runs on, by DLPack's name
    library_name : tells it from the package's other libraries
    notices : why libraries of devices that are usually faster do not run here
    modalities : what it takes: text, image, audio
    drafter_cache : which tensor of its drafter lies where; None where it has no drafter
    library : what the package lists of its library
    """

    directory: Path
    library_path: Path
    target: str
    device: str
    chat_config: ChatConfig
    tensor_cache: TensorCache
    modalities: tuple[str, ...] = ("text",)
    drafter_cache: TensorCache | None = None
    library_name: str = ""
    notices: tuple[str, ...] = ()
    library: LibraryRecord | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        check: Check = Check.ONCE,
        progress: ByteCount = lambda done, total: None,
        drafter: bool = True,
        device: str | None = None,
    ) -> Package:
        """Read what describes the package; weights and tokenizer are loaded on demand.

        Of its libraries one is looked at: see `choose_library`. The files of the others may be
        missing or damaged.

        Parameters
        ----------
        check : when the files are held against their hashes
        progress : is given how much is hashed, if anything is
        drafter : its files are wanted; without, they may be missing, and it is as if it had none
        device : name of the library to run, or of its device; by default the best that runs here

        Raises
        ------
        ArtifactError
            If a file is missing, damaged or of another build, or no library loads into a process.
        UsageError
            If there is no library of that name.
        """
        provenance = read_provenance(directory)
        if provenance.library is None:
            check_whole(directory, provenance)
        for field in ("target", DEVICE):
            if not isinstance(provenance.build.get(field, ""), str):
                raise Fields(provenance.build, abi.PROVENANCE_FILE).damaged(field)
        choice = choose_library(directory, provenance, device)
        check_whole(directory, provenance)
        library, provenance = choice.library, of_library(provenance, choice.library)
        check_files(directory, provenance, check, progress, drafter=drafter)
        chat_config = ChatConfig.from_json(read_artifact(directory / abi.CHAT_CONFIG_FILE))
        cache = TensorCache.from_json(read_artifact(directory / abi.TENSOR_CACHE_FILE))
        check_manifest(read_artifact(directory / abi.MANIFEST_FILE), cache, provenance)
        package = cls(
            directory,
            directory / library.file,
            library.target,
            library.device,
            chat_config,
            cache,
            modalities=_modalities(provenance),
            drafter_cache=_drafter_cache(directory, provenance) if drafter else None,
            library_name=library.name,
            notices=choice.notices,
            library=library,
        )
        package._check_conversation()
        return package

    def _check_conversation(self) -> None:
        """Try what a conversation needs; ArtifactError if it cannot be held."""
        self.sampling_defaults()
        templates = self._templates()
        check_conversation(
            self._tokenizer_path,
            templates.get(DEFAULT),
            self.special_tokens(),
            self.chat_config.vocab_size,
            templates.get(TOOL_USE),
        )

    @property
    def _tokenizer_path(self) -> Path:
        return self.directory / "tokenizer.json"

    @property
    def embeds(self) -> bool:
        """Return whether it is an encoder's, which makes embeddings and no replies."""
        return embeds(self.chat_config.conversation)

    def check_replies(self) -> None:
        """ArtifactError for a package that makes embeddings and no replies."""
        if self.embeds:
            what = f"`{self.directory}` makes embeddings of texts, and no replies"
            hint = "gemma4-serve has /v1/embeddings, `gemma4_compile.runtime` an `Embedder`"
            raise ArtifactError(what, hint=hint)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids that end a reply."""
        template = self.chat_config.conversation["conv_template"]
        ids = template.get("stop_token_ids") if isinstance(template, Mapping) else None
        vocabulary = range(self.chat_config.vocab_size)
        if not isinstance(ids, list) or not all(type(i) is int and i in vocabulary for i in ids):
            raise _damaged_config("conv_template.stop_token_ids")
        return frozenset(ids)

    def sampling_defaults(self) -> SamplingOptions:
        """The package's own sampling options."""
        fields = self.chat_config.conversation
        names = ("temperature", "top_k", "top_p", *PENALTIES)
        for name in names:
            if name not in PENALTIES and name not in fields:
                raise _damaged_config(name)
        try:
            given: JsonObject = {name: fields[name] for name in names if name in fields}
            return SamplingOptions(**given)
        except UsageError as error:
            raise ArtifactError(
                f"`{abi.CHAT_CONFIG_FILE}`: {error}", hint=_COMPILE_AGAIN
            ) from error

    def load_tokenizer(self) -> Tokenizer:
        """The tokenizer of `tokenizer.json`; ArtifactError if it is missing or damaged."""
        try:
            return load_tokenizer(self._tokenizer_path)
        except ConversationError as error:
            raise ArtifactError(str(error), hint=_COMPILE_AGAIN) from error

    def bos_token_id(self, tokenizer: Tokenizer) -> int | None:
        """The token that every prompt begins with; None where the model has none."""
        name = self.special_tokens().get("bos_token")
        if name is not None:
            found: int | None = tokenizer.token_to_id(name)
            return found
        declared = self.chat_config.conversation.get("bos_token_id")
        if type(declared) is not int or not 0 <= declared < self.chat_config.vocab_size:
            return None
        return declared

    def chat_template(self) -> ChatTemplate:
        """The chat template, to be rendered; ArtifactError if it is damaged, or there is none."""
        tool_use = self._templates().get(TOOL_USE)
        return ChatTemplate(self.load_chat_template(), self.special_tokens(), tool_use)

    def load_chat_template(self) -> str:
        """Source of the chat template; ArtifactError if the package has none."""
        self.check_replies()
        templates = self._templates()
        if DEFAULT not in templates:
            raise ArtifactError(
                f"`{self.directory}` has no chat template: its model goes on with texts, as base "
                "models do",
                hint=f"gemma4-chat {self.directory} --raw, or gemma4-serve and /v1/completions; "
                "for conversations compile an instruction-tuned checkpoint (its name ends in "
                "`-it`)",
            )
        return templates[DEFAULT]

    @property
    def has_chat_template(self) -> bool:
        """Return whether there is one."""
        return DEFAULT in self._templates()

    def _templates(self) -> Mapping[str, str]:
        """Sources of the chat templates by name; empty where the package has none."""
        path = self.directory / "chat_template.jinja"
        if os.path.lexists(path):
            try:
                return {DEFAULT: read_regular(path, MAX_JSON_BYTES).decode("utf-8")}
            except (OSError, UnicodeDecodeError) as error:
                raise ArtifactError(
                    f"cannot read the chat template `{path}`: {error}", hint=_COMPILE_AGAIN
                ) from error
        if not os.path.lexists(self.directory / "tokenizer_config.json"):
            return {}
        return templates_of(read_artifact(self.directory / "tokenizer_config.json"))

    def special_tokens(self) -> dict[str, str]:
        """Texts of the tokens that chat templates name, such as `bos_token`."""
        if not os.path.lexists(self.directory / "tokenizer_config.json"):
            return {}
        return special_tokens(read_artifact(self.directory / "tokenizer_config.json"))

    def load_parameters(
        self,
        library_metadata: str,
        place: Callable[[StoredWeight], PlacedT],
        progress: ByteCount | None = None,
        stand_ins: Mapping[str, PlacedT] = MappingProxyType({}),
    ) -> list[PlacedT]:
        """Hand every weight to `place`; return what it made of them, as the library takes them.

        One shard is open at a time. `Uploads` brings a weight onto a device: memory of the host is
        taken for a piece of it at a time, or is the mapped file itself.

        Parameters
        ----------
        library_metadata : what the library's `_metadata` returns
        stand_ins : what is returned, by the name of a weight, in the place of some that are not
            loaded

        Raises
        ------
        ArtifactError
            If a shard is missing or short, or weights and library are not of one build.
        """
        expected = library_parameters(library_metadata, self.chat_config, self.tensor_cache)
        return self._placed(expected, self.tensor_cache, place, progress, stand_ins)

    def load_drafter(
        self,
        library_metadata: str,
        place: Callable[[StoredWeight], PlacedT],
        progress: ByteCount | None = None,
    ) -> list[PlacedT]:
        """Hand every weight of the drafter to `place`, as `load_parameters` did the model's."""
        assert self.drafter_cache is not None, "a package with a drafter"
        expected = drafter_parameters(library_metadata, self.drafter_cache)
        before = sum(r.nbytes for shard in self.tensor_cache.shards for r in shard.records)

        def count(done: int, total: int) -> None:
            if progress is not None:
                progress(before + done, before + total)

        return self._placed(expected, self.drafter_cache, place, count)

    def _placed(
        self,
        expected: list[tuple[str, tuple[int, ...], str]],
        cache: TensorCache,
        place: Callable[[StoredWeight], PlacedT],
        progress: ByteCount | None,
        stand_ins: Mapping[str, PlacedT] = MappingProxyType({}),
    ) -> list[PlacedT]:
        wanted = {name for name, _, _ in expected if name not in stand_ins}
        shards = cache.shards
        total = sum(r.nbytes for shard in shards for r in shard.records if r.name in wanted)
        placed, done, begin = {}, 0, time.monotonic()
        for shard in shards:
            with open_shard(self.directory, shard) as weights:
                for name, weight in weights.items():
                    if name in wanted:
                        placed[name] = place(weight)
                        done += weight.nbytes
                        if progress is not None:
                            progress(done, total)
        seconds = time.monotonic() - begin
        _log.info("weights: %d tensors, %d bytes, %.2f s", len(placed), total, seconds)
        return [stand_ins[name] if name in stand_ins else placed[name] for name, _, _ in expected]

    def map_weights(self) -> Iterator[tuple[str, Array]]:
        """Name and mapped values of every stored tensor; ArtifactError for a bad shard."""
        for shard in self.tensor_cache.shards:
            with open_shard(self.directory, shard) as weights:
                for name, weight in weights.items():
                    yield name, weight.mapped()

    def map_weight(self, name: str) -> Array:
        """Mapped values of one stored tensor of the model, of which only touched pages are read.

        ArtifactError for a bad shard. KeyError where there is none of that name.
        """
        for shard in self.tensor_cache.shards:
            if any(record.name == name for record in shard.records):
                with open_shard(self.directory, shard) as weights:
                    return weights[name].mapped()
        raise KeyError(name)


def _modalities(provenance: Provenance) -> tuple[str, ...]:
    found = provenance.build.get("modalities", ["text"])  # packages of earlier versions: text
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise Fields(provenance.build, abi.PROVENANCE_FILE).damaged("modalities")
    return tuple(found)


def _drafter_cache(directory: Path, provenance: Provenance) -> TensorCache | None:
    if DRAFTER not in provenance.build:
        return None
    return TensorCache.from_json(
        read_artifact(directory / abi.DRAFTER_CACHE_FILE), abi.DRAFTER_CACHE_FILE
    )


def _damaged_config(field: str) -> ArtifactError:
    return ArtifactError(
        f"`{abi.CHAT_CONFIG_FILE}`: field `{field}` is damaged", hint=_COMPILE_AGAIN
    )
