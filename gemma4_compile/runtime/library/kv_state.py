"""Keys and values of one sequence on a device, through the functions of a library's KV state."""

from __future__ import annotations

import logging

import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.library.native_library import NativeLibrary

_log = logging.getLogger(__name__)

_PAGE_SIZE = 16  # the client's argument; our state has no pages
_SEQUENCE = 0


class KvState:
    """A state with room for some positions.

    Attributes
    ----------
    handle : what the library's functions take
    """

    def __init__(
        self, library: NativeLibrary, device_name: str, context_length: int, prefill_chunk: int
    ) -> None:
        """Create it, empty; ArtifactError if the device has no room.

        Parameters
        ----------
        prefill_chunk : most tokens that are added at a time
        """
        self._begin = library.linked_function(abi.KV_BEGIN_FORWARD)
        self._end = library.linked_function(abi.KV_END_FORWARD)
        self._pop_n = library.linked_function(abi.KV_POP_N)
        self._clear = library.linked_function(abi.KV_CLEAR)
        self._add_sequence = library.linked_function(abi.KV_ADD_SEQUENCE)
        self._length = library.linked_function(abi.KV_LENGTH)
        sizes = (1, context_length, prefill_chunk, _PAGE_SIZE, 0)
        create = library.compiled_function(abi.CREATE_KV_CACHE)
        try:
            self.handle: tvm_ffi.Object = create(*(tvm_ffi.Shape((size,)) for size in sizes))
        except RuntimeError as error:
            raise ArtifactError(
                f"no room for keys and values of {context_length} tokens on the {device_name} "
                f"device: {error}",
                hint="make the context shorter, or close what else uses the device",
            ) from error
        self._add_sequence(self.handle, _SEQUENCE)
        _log.info("keys and values: room for %d tokens on %s", context_length, device_name)

    @property
    def length(self) -> int:
        """Tokens in the state."""
        return int(self._length(self.handle))

    def begin(self, count: int) -> None:
        """Make room for so many more tokens, before the call that adds them."""
        self._begin(self.handle, count)

    def end(self) -> None:
        """Finish what `begin` began, after the call."""
        self._end(self.handle)

    def pop(self, count: int) -> None:
        """Take back the last tokens; ValueError and no change where the rings cannot."""
        self._pop_n(self.handle, count)

    def clear(self) -> None:
        """Forget all tokens."""
        self._clear(self.handle)
        self._add_sequence(self.handle, _SEQUENCE)
