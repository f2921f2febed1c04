"""An encoder's package on its device: texts in, vectors out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.device.upload import Uploads
from gemma4_compile.runtime.embedding.errors import TextTooLongError
from gemma4_compile.runtime.embedding.settings import embedding_settings, usual_length
from gemma4_compile.runtime.embedding.text_tokens import TextTokens
from gemma4_compile.runtime.embedding.texts import Ids, calls, cut, packed
from gemma4_compile.runtime.engine.engine import check_room
from gemma4_compile.runtime.engine.sequence import Overflow
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.package.integrity import ByteCount
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.package.room import Placement, Wish

Float32Array = npt.NDArray[np.float32]


class Embedder:
    """Makes embeddings of texts.

    Each is the mean of a text's rows, projected, of length 1: their products are cosines. A text's
    does not depend on the others of a call. One thread uses it at a time.

    Attributes
    ----------
    dimensions : of an embedding
    tasks : names of the prompts that the package has
    max_tokens : of a text
    """

    def __init__(self, package: Package, *, progress: ByteCount | None = None) -> None:
        """Load library and weights.

        Parameters
        ----------
        package : an opened package
        progress : is given how much of the weights is loaded

        Raises
        ------
        ArtifactError
            If the package makes replies and no embeddings, its device is missing or has no room,
            or the library or a weight is missing, damaged or from another version.
        """
        settings = embedding_settings(package.chat_config)
        if settings is None:
            raise ArtifactError(
                f"`{package.directory}` makes replies, and no embeddings",
                hint="compile an encoder, such as google/embeddinggemma-2",
            )
        self.settings = settings
        self.dimensions, self.tasks = settings.dimensions, tuple(settings.prompts)
        self.max_tokens = usual_length(package.chat_config)
        self._most_rows = package.chat_config.prefill_chunk_size
        self.texts = TextTokens(package)
        self.device = Device.open(package.device)
        check_room(
            package,
            self.device,
            Wish(None, package.chat_config.context_window_size, False, Placement()),
        )
        library = NativeLibrary(package.library_path, self.device)
        metadata = library.metadata()
        uploads = Uploads(self.device)
        self._params = tvm_ffi.Array(package.load_parameters(metadata, uploads, progress))
        self._embed = library.compiled_function(abi.EMBED_TEXTS)

    @classmethod
    def open(
        cls, directory: Path | str, *, device: str | None = None, progress: ByteCount | None = None
    ) -> Embedder:
        """Load the package in `directory`; errors as of the constructor and of `Package.open`.

        `device` names the library to run, or its device; by default the best that runs here.
        """
        return cls(Package.open(Path(directory), device=device), progress=progress)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        dimensions: int | None = None,
        task: str | None = None,
        truncate: bool = False,
    ) -> Float32Array:
        """Embeddings (texts, dimensions) float32 of some texts, each of length 1.

        Parameters
        ----------
        texts : one text is a list of one
        dimensions : the first of an embedding, scaled to length 1 again; by default all. The
            released model is trained for 768, 512, 256 and 128
        task : of `tasks`, whose prompt is put in front of each text: `query` and `document` of a
            search, others for what both sides are alike in. By default what the package says,
            mostly none
        truncate : leave out what is beyond `max_tokens` of a text

        Raises
        ------
        UsageError
            If there is no text, or one is no string, has no token or more than `max_tokens`, or
            `dimensions` or `task` are none of the package's.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        return self.embed_tokens(
            self.tokens_of(given, task=task, truncate=truncate), dimensions=dimensions
        )

    def tokens_of(
        self, texts: Sequence[str], *, task: str | None = None, truncate: bool = False
    ) -> list[list[int]]:
        """The tokens that stand for texts, with those around them; as `embed`.

        Of a text that is much too long only a beginning is read, which is too long, too: all of it
        could take minutes and gigabytes.
        """
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise UsageError(f"text {number}: expected a string, found {type(text).__name__}")
            if re.search("[\ud800-\udfff]", text):
                raise UsageError(
                    f"text {number}: half of a character is no text",
                    hint="it was cut within a character, or read with `surrogateescape`: "
                    "`text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')` mends it",
                )
        prompt = self.settings.prompt(task)
        most = self.max_tokens if truncate else None
        letters = (self.max_tokens + 1) * self.texts.longest
        return [self.texts.of(f"{prompt}{text[:letters]}", most) for text in texts]

    def embed_tokens(
        self,
        texts: Sequence[Ids],
        *,
        dimensions: int | None = None,
        between_calls: Callable[[], None] = lambda: None,
    ) -> Float32Array:
        """As `embed`, of tokens as they are: no prompt, and nothing around them.

        `between_calls` : is called before each call of the library, and may raise
        """
        wanted = self.settings.check_dimensions(dimensions)
        self.check(texts)
        vectors = [np.empty((0, self.dimensions), np.float32)]
        for run in calls([len(text) for text in texts], self._most_rows):
            between_calls()
            args = [self.device.place(one) for one in packed([texts[index] for index in run])]
            vectors.append(self.device.read(self._embed(*args, self._params)))
        return cut(np.concatenate(vectors), wanted)

    def check(self, texts: Sequence[Ids]) -> None:
        """UsageError for tokens of which no embedding is made."""
        if not len(texts):
            raise UsageError("there are no texts to embed")
        for number, text in enumerate(texts):
            if not len(text):
                raise UsageError(f"text {number} has no token")
            if len(text) > self.max_tokens:
                raise TextTooLongError(number, Overflow(len(text), self.max_tokens))
            wrong = next((one for one in text if not 0 <= one < self.texts.vocab_size), None)
            if wrong is not None:
                raise UsageError(
                    f"text {number}: expected token ids from 0 to {self.texts.vocab_size - 1}, "
                    f"found {wrong}"
                )
