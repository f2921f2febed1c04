"""Keys and values of sequences on a device, through the functions of a library's KV state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import count

import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.errors import ArtifactError
from gemma4_compile.runtime.device.device import Device
from gemma4_compile.runtime.library.kv_rows import KvRows
from gemma4_compile.runtime.library.native_library import NativeLibrary
from gemma4_compile.runtime.library.row_stream import RowStream

_log = logging.getLogger(__name__)

_UPLOADS = 2
"""Uploads at the beginning of a forward: where its rows are, and their angles."""
_PAGE_SIZE = 16  # the client's argument; our state has no pages


class KvState:
    """Room for some sequences, each with its own positions.

    Attributes
    ----------
    handle : what the library's functions take
    sequences : how many there is room for
    before_forward : is called when a forward begins, of whatever kind
    """

    before_forward: Callable[[], None] | None = None

    def __init__(
        self,
        library: NativeLibrary,
        device: Device,
        context_length: int,
        prefill_chunk: int,
        sequences: int = 1,
    ) -> None:
        """Create it, empty; ArtifactError if the device has no room for it.

        Where a forward may be of several sequences, memory of all is taken here, else that of one.

        Parameters
        ----------
        context_length : positions of each sequence
        prefill_chunk : most tokens that are added at a time
        """
        self._begin = library.linked_function(abi.KV_BEGIN_FORWARD)
        self._end = library.linked_function(abi.KV_END_FORWARD)
        self._pop_n = library.linked_function(abi.KV_POP_N)
        self._add = library.linked_function(abi.KV_ADD_SEQUENCE)
        self._remove = library.linked_function(abi.KV_REMOVE_SEQUENCE)
        self._fork = library.linked_function(abi.KV_FORK_SEQUENCE)
        self._length = library.linked_function(abi.KV_LENGTH)
        self._library = library
        self._device, self._context_length = device, context_length
        self.sequences = sequences
        self._slots = set[int]()  # that have memory
        self._sending: RowStream | None = None
        sizes = (sequences, context_length, prefill_chunk, _PAGE_SIZE, 0)
        create = library.compiled_function(abi.CREATE_KV_CACHE)
        try:
            self.handle: tvm_ffi.Object = create(*(tvm_ffi.Shape((size,)) for size in sizes))
        except RuntimeError as error:
            raise self._no_room(error) from error
        _log.info("keys and values: room for %d tokens on %s", context_length, device.name)
        device.finish_uploads()  # zeros, a megabyte each

    def add(self, sequence: int) -> int:
        """Add an empty sequence under a new number; its slot, whose memory is always the same.

        ArtifactError if the device has no room for a slot that there was not before.
        """
        try:
            slot = int(self._add(self.handle, sequence))
        except RuntimeError as error:
            raise self._no_room(error) from error
        self._note_slot(slot)
        return slot

    def fork(self, parent: int, child: int, position: int) -> int:
        """As `add`, with the first tokens of another; ValueError where its rings have not all."""
        self._join()
        try:
            slot = int(self._fork(self.handle, parent, child, position))
        except RuntimeError as error:
            raise self._no_room(error) from error
        self._note_slot(slot)
        return slot

    def tensors(self) -> Iterator[tvm_ffi.Tensor]:
        """Keys and values (rows, heads, head_dim) of the sequence whose forward began last.

        Of every layer that has some, or of each of its parts.
        """
        for name in (abi.KV_KEY, abi.KV_VALUE):
            tensor_of = self._library.linked_function(name)
            for entry in count():
                try:
                    tensor = tensor_of(self.handle, entry)
                except IndexError:
                    break
                yield tensor

    @cached_property
    def rows(self) -> KvRows:
        """Rows of its sequences; ArtifactError where the library cannot copy them."""
        dtype = str(next(self.tensors()).dtype)
        rows = KvRows(self._library, self._device, self.handle, dtype)
        self._sending = rows.stream
        return rows

    def remove(self, sequence: int) -> None:
        """Forget a sequence, also within a forward; ValueError where there is none."""
        if self._sending is not None:
            self._sending.drop(sequence)
        self._remove(self.handle, sequence)

    def renew(self, sequence: int) -> int:
        """Forget the tokens of a sequence, also within a forward; its slot, as of `add`."""
        with suppress(ValueError):  # an interrupted call may have removed it
            self.remove(sequence)
        return self.add(sequence)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return int(self._length(self.handle, sequence))

    def begin(
        self, sequences: tuple[int, ...], counts: tuple[int, ...], *, by_layer: bool = False
    ) -> None:
        """Make room for so many more tokens of each, before the call that adds them.

        `by_layer` : that call asks for the keys of each layer when it launches that, so that rows
        which were sent may come until then

        RuntimeError for several with more than a token each where each slot has memory of its own,
        and for several at all where the library takes one at a time.
        """
        if self.before_forward is not None:
            self.before_forward()
        sending = self._sending if by_layer else None
        if sending is None:
            self._join()
        self._device.expect_uploads(_UPLOADS)
        self._begin(self.handle, _shape(sequences), _shape(counts))
        if sending is not None and sending.is_coming:
            sending.begin()

    def end(self) -> None:
        """Finish what `begin` began, after the call."""
        self._end(self.handle)
        self._join()

    def pop(self, sequence: int, count: int) -> None:
        """Take back the last tokens; ValueError and no change where the rings cannot."""
        self._pop_n(self.handle, sequence, count)

    def _join(self) -> None:
        """Have whatever the device is given next come after all rows that were sent."""
        if self._sending is not None:
            self._sending.join()

    def _note_slot(self, slot: int) -> None:
        """Wait for the zeros of a slot that may not have been there before."""
        if slot not in self._slots:
            self._slots.add(slot)
            self._device.finish_uploads()

    def _no_room(self, error: RuntimeError) -> ArtifactError:
        return ArtifactError(
            f"no room for keys and values of {self._context_length} tokens on the "
            f"{self._device.name} device: {error}",
            hint="make the context shorter, or close what else uses the device",
        )


@lru_cache(maxsize=1024)
def _shape(numbers: tuple[int, ...]) -> tvm_ffi.Shape:
    """Numbers as the library takes them; to make them takes some microseconds for each token."""
    return tvm_ffi.Shape(numbers)
