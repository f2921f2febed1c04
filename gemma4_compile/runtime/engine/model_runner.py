"""Forwards of a model on its device: of a prompt, a chunk at a time, or of one token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import UsageError
from gemma4_compile.media.inputs import Picture, Sound
from gemma4_compile.media.settings import MediaSettings
from gemma4_compile.runtime.device.device import Device, Feed, view
from gemma4_compile.runtime.engine.chunks import chunks
from gemma4_compile.runtime.engine.media_prompt import Prompt, Tokens
from gemma4_compile.runtime.engine.media_rows import MediaRows
from gemma4_compile.runtime.engine.sequence import Sequence
from gemma4_compile.runtime.library.kv_state import KvState
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.library.row_window import RowWindow
from gemma4_compile.runtime.library.steps import (
    GraphSteps,
    Parameters,
    PlainSteps,
    token_readback,
)
from gemma4_compile.runtime.sampling.sampling import Float32Array


@dataclass(frozen=True)
class LoadedModel:
    """A package's library on its device, with what its functions take.

    Attributes
    ----------
    params : weights
    media : what the model takes besides text
    prefill_chunk : most tokens that one forward takes
    window : rows of the table of per-layer embeddings, where that is not on the device
    rows_as_chunks : whether a forward of rows has the logits of a chunk's, to the last bit
    """

    library: NativeLibrary
    device: Device
    params: Parameters
    kv: KvState
    media: MediaSettings
    vocab_size: int
    prefill_chunk: int
    window: RowWindow | None = None
    rows_as_chunks: bool = False


class ModelRunner:
    """A model whose forwards add tokens to sequences of its KV state, to one at a time.

    Attributes
    ----------
    steps : the calls of every token
    embed, prefill : the library's functions that a chunk calls
    params : weights
    media_rows : the towers
    media : what the model takes besides text
    ids : memory on the device for the ids of a forward
    readback : brings drawn tokens to the host; None where they are waited for
    window : as of `LoadedModel`; a forward of tokens that are on the device alone needs it None
    """

    def __init__(self, model: LoadedModel, steps: PlainSteps | GraphSteps) -> None:
        """Take the library's functions."""
        library, device = model.library, model.device
        self.steps, self.params, self.media = steps, model.params, model.media
        self.media_rows = MediaRows(library.compiled_function, device, model.params, model.media)
        self.embed = library.compiled_function(abi.EMBED)
        self.prefill: Forward = library.compiled_function(abi.PREFILL)
        self.ids = Feed(device, model.prefill_chunk, "int32")
        self._text = device.place(np.full(model.prefill_chunk, abi.MODALITY_TEXT, np.int32))
        self._modalities = Feed(device, model.prefill_chunk, "int32")
        self._device = device
        self.readback = token_readback(device, model.kv.sequences)
        self._draw_numbers: dict[int, tuple[Feed, ...]] = {}
        self._kv = model.kv.handle
        self._vocab_size = model.vocab_size
        self._chunk = model.prefill_chunk
        self.window = model.window

    def forward(self, sequence: Sequence, tokens: Tokens) -> tvm_ffi.Tensor:
        """Add tokens, a chunk at a time; logits (1, 1, vocab_size) of the last one.

        They stay on the device, until the next call. Errors as of `Engine.prefill`.
        """
        prompt = Prompt.of(tokens)
        self.check(sequence, prompt.ids)
        logits = None
        whole = self.media.whole_images
        chunk = min(self._chunk, sequence.context_length)
        cut = chunks(prompt.modalities(), chunk, whole_images=whole)
        parts = [prompt.part(part.start, part.stop) for part in cut]
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            if self.window is not None and following is not None:
                self.window.read_ahead(following.ids)
            logits = self._forward_chunk(sequence, part)
        assert logits is not None, "checked above: there is at least one token"
        return logits

    def forward_one(self, sequence: Sequence, token_id: int) -> tvm_ffi.Tensor:
        """As `forward`, with one token."""
        self.check(sequence, [token_id])
        if self.window is not None:
            self.window.put([token_id])
        return self.step(sequence, self.ids.write([[token_id]]))

    def last_logits(self, sequence: Sequence) -> tvm_ffi.Tensor | None:
        """Logits of the token that was added last; None where there are none.

        A step of several sequences that draws keeps none. Who asks for them all the same, as a
        fork or after Ctrl-C, has that token taken back and added again.
        """
        token_id, chosen = sequence.added, sequence.chosen
        if sequence.logits is None and token_id is not None and sequence.pop(1):
            self.forward_one(sequence, token_id)
            sequence.chosen = chosen
        return sequence.logits

    def step(self, sequence: Sequence, ids: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
        """As `forward_one`, with a token on the device, int32 (1, 1), that is known to fit.

        Where there is a window, it has the token's row.
        """
        sequence.begin(1)
        logits = self.steps.forward(ids, slot=sequence.slot)
        sequence.end(logits)
        return logits

    def run(
        self,
        sequence: Sequence,
        embedded: tvm_ffi.Tensor,
        ids: tvm_ffi.Tensor,
        modalities: tvm_ffi.Tensor,
    ) -> tvm_ffi.Tensor:
        """As `forward`, with one chunk on the device that is known to fit; a window has its rows.

        Parameters
        ----------
        embedded : (n, hidden_size)
        ids, modalities : int32, (1, n)
        """
        sequence.begin(int(embedded.shape[0]), by_layer=True)
        whole = view(embedded, (1, *embedded.shape))
        logits: tvm_ffi.Tensor = self.prefill(whole, ids, modalities, self._kv, self.params)[0]
        sequence.end(logits)
        return logits

    def draw_numbers(self, slot: int) -> tuple[Feed, ...]:
        """Memory for the three numbers that a draw of a slot takes, one each.

        The same for all who draw there in turns: a graph of another memory would be recorded anew.
        """
        if slot not in self._draw_numbers:
            made = (Feed(self._device, 1, "float32") for _ in range(3))
            self._draw_numbers[slot] = tuple(made)
        return self._draw_numbers[slot]

    def rows_of(self, medium: Picture | Sound) -> Float32Array:
        """Rows (rows, hidden_size) that a picture or a sound becomes; nothing is added.

        UsageError if the package does not take it.
        """
        return self.media_rows.read(medium)

    def check(self, sequence: Sequence, ids: Collection[int]) -> None:
        """Raise what `Engine.prefill` says of tokens that cannot be added."""
        sequence.check(len(ids))
        if not len(ids):
            raise UsageError("there are no tokens to add")
        last = self._vocab_size - 1
        for token_id in ids:
            if not 0 <= token_id <= last:
                raise UsageError(f"token id: expected 0 to {last}, found {token_id}")

    def _forward_chunk(self, sequence: Sequence, chunk: Prompt) -> tvm_ffi.Tensor:
        if self.window is not None:  # first, for the device has the chunk before to run
            self.window.put(chunk.ids, chunk.modalities())
        on_device = self.ids.write(chunk.ids)
        embedded = self.embed(on_device, self.params)
        modalities = self._text
        if chunk.runs:
            self.media_rows.put(chunk, embedded)
            modalities = self._modalities.write(chunk.modalities())
        shape = (1, len(chunk))
        return self.run(sequence, embedded, view(on_device, shape), view(modalities, shape))
