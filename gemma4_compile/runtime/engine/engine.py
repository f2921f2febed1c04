"""Runs a package on its device: weights, prefill in chunks, decode, one sequence."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import MediaSettings, media_settings
from gemma4_compile.options.chat import MAX_DRAFTS
from gemma4_compile.runtime.device.device import Device, Feed, view
from gemma4_compile.runtime.engine.chunks import chunks
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.media_rows import MediaRows
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.library.steps import graphs_wanted, token_readback, token_steps
from gemma4_compile.runtime.package.integrity import ByteCount
from gemma4_compile.runtime.package.package import Package
from gemma4_compile.runtime.sampling.token_engine import DrawOptions, Peek
from gemma4_compile.runtime.speculative.drafting import Drafter, Rows, check_drafts

Float32Array = npt.NDArray[np.float32]


class ContextFullError(Gemma4CompileError):
    """The conversation does not fit into the context that the state was made for."""


class Engine:
    """A model and the state of one sequence.

    Attributes
    ----------
    device : where weights and state are
    vocab_size : length of the logits
    context_length : positions that the state holds
    prefill_chunk : most tokens that one forward takes
    media : what the package takes besides text
    """

    def __init__(
        self,
        package: Package,
        *,
        context_length: int | None = None,
        progress: ByteCount | None = None,
        graphs: bool | None = None,
        drafts: int | None = None,
    ) -> None:
        """Load library and weights, and create the state.

        Parameters
        ----------
        package : an opened package
        context_length : positions to make room for; by default what the package was compiled for
        progress : is given how much of the weights is loaded
        graphs : use CUDA graphs; by default unless the environment variable GEMMA4_CUDA_GRAPHS is
            0. Other devices have none.
        drafts : guesses of a round, 0 for none, so that the drafter is not loaded; by default as
            many as pay where the package has a drafter

        Raises
        ------
        ArtifactError
            If the package's device is missing or has no room for weights, keys and values, or the
            library or a weight is missing, damaged or from another version.
        UsageError
            If `context_length` is above the compiled one, or there is no drafter for `drafts`, or
            they are too many.
        """
        self.vocab_size = package.chat_config.vocab_size
        self.prefill_chunk = package.chat_config.prefill_chunk_size
        compiled = package.chat_config.context_window_size
        self.context_length = compiled if context_length is None else context_length
        if not 1 <= self.context_length <= compiled:
            raise UsageError(
                f"context length: expected 1 to {compiled}, found {self.context_length}",
                hint="compile the package with a larger --context",
            )
        check_drafts(drafts, package)
        self.device = Device.open(package.device)
        library = NativeLibrary(package.library_path, self.device)
        metadata = str(library.compiled_function(abi.METADATA)())
        self._params = tvm_ffi.Array(package.load_parameters(metadata, self.device.place, progress))
        self.media: MediaSettings = media_settings(json.loads(metadata))
        self._embed = library.compiled_function(abi.EMBED)
        self._media_rows = MediaRows(
            library.compiled_function, self.device, self._params, self.media
        )
        self._prefill: Forward = library.compiled_function(abi.PREFILL)
        chunk = min(self.prefill_chunk, self.context_length)
        self._ids = Feed(self.device, self.prefill_chunk, "int32")
        modalities = np.full(self.prefill_chunk, abi.MODALITY_TEXT, np.int32)
        self._text = self.device.place(modalities)
        self._modalities = Feed(self.device, self.prefill_chunk, "int32")
        self._numbers = [Feed(self.device, 1, "float32") for _ in range(3)]
        self._state = KvState(library, self.device.name, self.context_length, chunk)
        shared = (library, self.device, self._state.handle, self._params)
        graphs = graphs_wanted(self.device, graphs)
        self._steps = token_steps(*shared, self.vocab_size, graphs=graphs)
        self.drafts = drafts
        self._guessed: int | None = None  # of the round that `accept` is to end
        self._drafter: Drafter | None = None
        if drafts != 0 and package.drafter_cache is not None:
            own = tvm_ffi.Array(package.load_drafter(metadata, self.device.place, progress))
            self._drafter = Drafter(*shared, own, graphs=graphs)
        self._readback = token_readback(self.device)
        self._logits: tvm_ffi.Tensor | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        context_length: int | None = None,
        progress: ByteCount | None = None,
        graphs: bool | None = None,
        drafts: int | None = None,
        device: str | None = None,
    ) -> Engine:
        """Load the package in `directory`; parameters and errors as in the constructor.

        `device` names the library to run, or its device; by default the best that runs here.
        """
        package = Package.open(directory, drafter=drafts != 0, device=device)
        return cls(
            package, context_length=context_length, progress=progress, graphs=graphs, drafts=drafts
        )

    @property
    def draws_on_device(self) -> bool:
        """Return whether `sampled` is faster than to read logits and choose on the host."""
        return self.device.kind.draws

    @property
    def launches_in_graphs(self) -> tuple[int, int]:
        """Launches of a decode step and of a draw that are CUDA graphs by now; 0 for none."""
        return self._steps.kernels

    @property
    def length(self) -> int:
        """Tokens in the state."""
        return self._state.length

    @property
    def most_drafts(self) -> int:
        """Guesses of a round, at most; 0 where there is no drafter."""
        chunk = min(self.prefill_chunk, self.context_length)
        return 0 if self._drafter is None else min(MAX_DRAFTS, chunk - 1)

    def advance(self, token_id: int, drafts: int) -> tuple[list[int], Rows]:
        """Add a token and guesses of what follows it; return these and the logits of all.

        Row i of the logits follows guess i - 1, and row 0 the token. `accept` is called next. There
        are fewer guesses than asked for where the context ends, and none in the first round after
        tokens that were added otherwise.
        """
        drafter, logits, rows = self._run_round(token_id, drafts)
        return drafter.read(rows)[0][1:], Rows(self.device, logits)

    def advance_drawn(
        self, token_id: int, drafts: int, options: DrawOptions, peek: Peek
    ) -> tuple[list[int], list[int]]:
        """As `advance`; return the guesses, and a token drawn on the device from each row."""
        drafter, logits, rows = self._run_round(token_id, drafts)
        drafter.draw(logits, options, peek(rows))
        ids, drawn = drafter.read(rows)
        return ids[1:], drawn

    def accept(self, count: int) -> None:
        """Keep the token and the first `count` guesses of `advance`, and take the others back.

        UsageError if there was no round, or it had fewer guesses.
        """
        guessed = self._guessed
        if self._drafter is None or guessed is None:
            raise UsageError("accept: there is no round of guesses; call advance first")
        if not 0 <= count <= guessed:
            raise UsageError(f"accept: expected 0 to {guessed} guesses, found {count}")
        self._guessed = None
        if count < guessed:
            self._state.pop(guessed - count)
        self._drafter.keep(count)

    def clear(self) -> None:
        """Forget the sequence; the next token is at position 0."""
        self._forget_drafts()
        self._logits = None
        self._state.clear()

    def pop(self, count: int) -> bool:
        """Take back the last `count` tokens; False and no change where the rings cannot."""
        try:
            self._state.pop(count)
        except ValueError:
            return False
        self._logits = None  # of another token
        self._forget_drafts()
        return True

    def prefill(self, ids: Sequence[int]) -> Float32Array:
        """Add tokens, a chunk at a time, and return the logits (vocab_size,) of the last one.

        Parameters
        ----------
        ids : a `Prompt` where there are media among them

        Raises
        ------
        ContextFullError
            If they do not fit; none is added then.
        UsageError
            If there are none, an id is outside the vocabulary, the package does not take a medium,
            or a picture that must be whole is longer than a chunk.
        """
        return self._read(self.forward(ids))

    def decode(self, token_id: int) -> Float32Array:
        """Add one token and return the logits (vocab_size,) of the next; errors as `prefill`."""
        return self._read(self.forward_one(token_id))

    def rows_of(self, medium: Picture | Sound) -> Float32Array:
        """Rows (rows, hidden_size) that a picture or a sound becomes; nothing is added.

        UsageError if the package does not take it.
        """
        return self._media_rows.read(medium)

    def forward(self, ids: Sequence[int]) -> tvm_ffi.Tensor:
        """As `prefill`; the logits (1, 1, vocab_size) stay on the device, until the next call."""
        self._check(ids)
        chunk = min(self.prefill_chunk, self.context_length)
        prompt = Prompt.of(ids)
        logits = None
        whole = self.media.whole_images
        for part in chunks(prompt.modalities(), chunk, whole_images=whole):
            logits = self._forward_chunk(prompt.part(part.start, part.stop))
        assert logits is not None, "checked above: there is at least one token"
        return logits

    def forward_one(self, token_id: int) -> tvm_ffi.Tensor:
        """As `decode`; the logits (1, 1, vocab_size) stay on the device, until the next call."""
        self._check([token_id])
        return self._step(self._ids.write([[token_id]]))

    def draw(self, logits: tvm_ffi.Tensor, temperature: float, top_p: float, uniform: float) -> int:
        """Draw a token on the device: what crosses to the host is its id.

        Parameters
        ----------
        logits : what `forward` or `forward_one` returned last
        temperature, top_p : above 0
        uniform : a random number in [0, 1), which decides
        """
        return int(self.device.read(self._draw(logits, temperature, top_p, uniform))[0])

    def draw_last(self, options: DrawOptions, uniform: float) -> int:
        """Draw on the device from the logits of the last forward."""
        assert self._logits is not None, "of a forward"
        return self.draw(self._logits, *options, uniform)

    def sampled(
        self,
        temperature: float,
        top_p: float,
        random: Callable[[], float],
        token_id: int | None = None,
    ) -> Generator[int, None, None]:
        """Draw tokens on the device, each from the logits after the one before.

        Logits of the last forward begin. A token is in the state once the next is asked for. On
        CUDA the step after a token is launched before the host has the token; what it adds is
        taken back when the iterator is closed, which is to happen before any other call.

        Parameters
        ----------
        temperature, top_p : above 0
        random : numbers in [0, 1); one is taken for each token
        token_id : is added first

        Raises
        ------
        ContextFullError
            If `token_id`, or the token that was yielded last, does not fit, and another is asked
            for.
        """
        if token_id is not None:
            self.forward_one(token_id)
        while True:
            if self._logits is None:
                raise UsageError("there are no logits to draw from: add a token first")
            drawn = self._draw(self._logits, temperature, top_p, random())
            ahead = self._readback is not None and self.length < self.context_length
            if self._readback is not None:
                self._readback.queue(drawn)
            if ahead:
                self._step(self._ids.write_from(drawn, (1, 1)))
            try:
                read = self._readback.wait() if self._readback else self.device.read(drawn)[0]
                drawn_id = int(read)
                yield drawn_id
            except GeneratorExit:
                if ahead:
                    self.pop(1)
                self._logits = None  # they were drawn from
                raise
            if not ahead:
                self.forward_one(drawn_id)

    def _run_round(self, token_id: int, drafts: int) -> tuple[Drafter, tvm_ffi.Tensor, int]:
        """Launch guesses and the model on them; logits (1, n, vocab_size), and n."""
        drafter = self._drafter
        if drafter is None:
            raise UsageError("advance: there is no drafter here; see most_drafts")
        if drafts < 0:
            raise UsageError(f"advance: expected 0 guesses or more, found {drafts}")
        self._check([token_id])
        position = self.length
        room = self.context_length - position - 1
        count = min(drafts, self.most_drafts, room) if drafter.is_ready else 0
        self._logits = None
        self._state.begin(count + 1)
        if count:
            drafter.guess(token_id, position, count)
        else:
            drafter.put([token_id])
        logits = drafter.run(count + 1)
        self._state.end()
        self._guessed = count
        return drafter, logits, count + 1

    def _forget_drafts(self) -> None:
        self._guessed = None
        if self._drafter is not None:
            self._drafter.forget()

    def _step(self, ids: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
        self._forget_drafts()
        self._state.begin(1)
        self._logits = self._steps.forward(ids)
        self._state.end()
        return self._logits

    def _draw(
        self, logits: tvm_ffi.Tensor, temperature: float, top_p: float, uniform: float
    ) -> tvm_ffi.Tensor:
        numbers = zip(self._numbers, (temperature, uniform, top_p), strict=True)
        return self._steps.draw(logits, *(feed.write([value]) for feed, value in numbers))

    def _forward_chunk(self, ids: Prompt) -> tvm_ffi.Tensor:
        self._forget_drafts()
        on_device = self._ids.write(ids)
        embedded = self._embed(on_device, self._params)
        modalities = self._text
        if ids.runs:
            self._media_rows.put(ids, embedded)
            modalities = self._modalities.write(ids.modalities())
        self._state.begin(len(ids))
        result = self._prefill(
            view(embedded, (1, *embedded.shape)),
            view(on_device, (1, len(ids))),
            view(modalities, (1, len(ids))),
            self._state.handle,
            self._params,
        )
        self._state.end()
        self._logits = result[0]
        return self._logits

    def _check(self, ids: Sequence[int]) -> None:
        if self._guessed is not None:
            raise UsageError("the guesses of a round are in the state: call accept first")
        if not len(ids):
            raise UsageError("there are no tokens to add")
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise UsageError(f"token id: expected 0 to {self.vocab_size - 1}, found {token_id}")
        self._check_room(len(ids))

    def _check_room(self, count: int) -> None:
        if self.length + count > self.context_length:
            raise ContextFullError(
                f"the context is full: it holds {self.length} of {self.context_length} tokens, and "
                f"{count} more do not fit",
                hint="start a new conversation, or compile with a larger --context",
            )

    def _read(self, logits: tvm_ffi.Tensor) -> Float32Array:
        """Logits (vocab_size,), copied out of the machine's pooled memory."""
        return self.device.read(logits).reshape(-1)
