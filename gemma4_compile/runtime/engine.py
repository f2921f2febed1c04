"""Runs a `cpu` package: weights mapped from its shards, prefill in chunks, decode, one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.native_library import NativeLibrary
from gemma4_compile.runtime.package import Package

Float32Array = npt.NDArray[np.float32]

_PAGE_SIZE = 16  # the client's argument; our state has no pages
_SEQUENCE = 0


class ContextFullError(Gemma4CompileError):
    """The conversation does not fit into the context that the state was made for."""


class Engine:
    """A model and the state of one sequence.

    Attributes
    ----------
    vocab_size : length of the logits
    context_length : positions that the state holds
    prefill_chunk : most tokens that one forward takes
    """

    def __init__(self, package: Package, *, context_length: int | None = None) -> None:
        """Load the library and create the state.

        Parameters
        ----------
        package : an opened `cpu` package
        context_length : positions to make room for; by default what the package was compiled for

        Raises
        ------
        ArtifactError
            If the library or a weight is missing, damaged or from another version.
        UsageError
            If `context_length` is above the compiled one.
        """
        self.vocab_size = package.chat_config.vocab_size
        self.prefill_chunk = package.chat_config.prefill_chunk_size
        compiled = package.chat_config.context_window_size
        self.context_length = compiled if context_length is None else context_length
        if not 1 <= self.context_length <= compiled:
            raise UsageError(
                f"context length: expected 1 to {compiled}, found {self.context_length}",
                hint="compile the package with a larger --context-length",
            )
        library = NativeLibrary(package.library_path)
        metadata = str(library.compiled_function(abi.METADATA)())
        self._arrays = package.load_parameters(metadata)  # keeps the mapped memory alive
        self._params = tvm_ffi.Array([tvm_ffi.from_dlpack(array) for array in self._arrays])
        self._embed = library.compiled_function(abi.EMBED)
        self._prefill = library.compiled_function(abi.PREFILL)
        self._decode = library.compiled_function(abi.DECODE)
        self._begin_forward = library.linked_function(abi.KV_BEGIN_FORWARD)
        self._end_forward = library.linked_function(abi.KV_END_FORWARD)
        self._pop_n = library.linked_function(abi.KV_POP_N)
        self._clear = library.linked_function(abi.KV_CLEAR)
        self._add_sequence = library.linked_function(abi.KV_ADD_SEQUENCE)
        self._length = library.linked_function(abi.KV_LENGTH)
        sizes = (
            1,
            self.context_length,
            min(self.prefill_chunk, self.context_length),
            _PAGE_SIZE,
            0,
        )
        create = library.compiled_function(abi.CREATE_KV_CACHE)
        self._state: Any = create(*(tvm_ffi.Shape((size,)) for size in sizes))
        self._add_sequence(self._state, _SEQUENCE)

    @classmethod
    def open(cls, directory: Path, *, context_length: int | None = None) -> Engine:
        """Load the package in `directory`; errors as in the constructor."""
        return cls(Package.open(directory), context_length=context_length)

    @property
    def length(self) -> int:
        """Tokens in the state."""
        return int(self._length(self._state))

    def clear(self) -> None:
        """Forget the sequence; the next token is at position 0."""
        self._clear(self._state)
        self._add_sequence(self._state, _SEQUENCE)

    def pop(self, count: int) -> bool:
        """Take back the last `count` tokens; False and no change where the rings cannot."""
        try:
            self._pop_n(self._state, count)
        except ValueError:
            return False
        return True

    def prefill(self, ids: Sequence[int]) -> Float32Array:
        """Add tokens, a chunk at a time, and return the logits (vocab_size,) of the last one.

        Raises
        ------
        ContextFullError
            If they do not fit; none is added then.
        UsageError
            If there are none, or an id is outside the vocabulary.
        """
        self._check(ids)
        chunk = min(self.prefill_chunk, self.context_length)
        logits = None
        for begin in range(0, len(ids), chunk):
            logits = self._forward_chunk(np.asarray(ids[begin : begin + chunk], np.int32))
        assert logits is not None, "checked above: there is at least one token"
        return logits

    def decode(self, token_id: int) -> Float32Array:
        """Add one token and return the logits (vocab_size,) of the next; errors as `prefill`."""
        self._check([token_id])
        self._begin_forward(self._state, 1)
        ids = tvm_ffi.from_dlpack(np.array([[token_id]], np.int32))
        result = self._decode(ids, self._state, self._params)
        self._end_forward(self._state)
        return _logits(result)

    def _forward_chunk(self, ids: npt.NDArray[np.int32]) -> Float32Array:
        self._begin_forward(self._state, len(ids))
        embedded = np.from_dlpack(self._embed(tvm_ffi.from_dlpack(ids), self._params))
        result = self._prefill(
            tvm_ffi.from_dlpack(embedded[None]),
            tvm_ffi.from_dlpack(ids[None]),
            tvm_ffi.from_dlpack(np.full((1, len(ids)), abi.MODALITY_TEXT, np.int32)),
            self._state,
            self._params,
        )
        self._end_forward(self._state)
        return _logits(result)

    def _check(self, ids: Sequence[int]) -> None:
        if not len(ids):
            raise UsageError("there are no tokens to add")
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise UsageError(f"token id: expected 0 to {self.vocab_size - 1}, found {token_id}")
        if self.length + len(ids) > self.context_length:
            raise ContextFullError(
                f"the context is full: it holds {self.length} of {self.context_length} tokens, and "
                f"{len(ids)} more do not fit",
                hint="start a new conversation, or compile with a larger --context-length",
            )


def _logits(result: Any) -> Float32Array:
    """Element 0 of a forward's result, copied out of the machine's pooled memory."""
    return np.array(np.from_dlpack(result[0]), dtype=np.float32).reshape(-1)
