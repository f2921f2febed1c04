"""Memory that recorded calls have in turns: one graph runs at a time, and reads what it wrote.

What a call returns is read after it, while others run: that is memory of its graph alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias

import tvm_ffi

ALLOCATE = "vm.builtin.alloc_storage"
_MAKE_TENSOR = "vm.builtin.alloc_tensor"
_EXCHANGE = Lock()

Allocate: TypeAlias = Callable[..., object]
"""As TVM's function that a virtual machine allocates by: the machine, sizes, and what more."""


@dataclass(frozen=True, eq=False)
class Storage:
    """Memory of the device.

    Attributes
    ----------
    held : what keeps it
    address : where it begins
    nbytes : its size
    like : what else was asked for besides a size
    """

    held: object
    address: int
    nbytes: int
    like: tuple[object, ...]

    def has(self, address: int) -> bool:
        """Return whether an address lies in it."""
        return self.address <= address < self.address + self.nbytes


class GraphStorage:
    """Memory for the intermediate results of all calls that one engine records.

    It grows to what the largest call needs, by powers of two.

    Attributes
    ----------
    shared : what calls have in turns
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.shared: list[Storage] = []

    @contextmanager
    def lent(self, own: Collection[int]) -> Iterator[Lent]:
        """Memory for one call, whose allocations of these numbers are its graph's alone."""
        lent = Lent(self.shared, own)
        yield lent
        self.shared += lent.added


class Lent:
    """What one recorded call has taken.

    Attributes
    ----------
    taken : in the order of the call
    added : of these, what is to be shared and was not there before
    """

    def __init__(self, shared: Sequence[Storage], own: Collection[int]) -> None:
        self._free, self._own = sorted(shared, key=lambda one: one.nbytes), own
        self.taken: list[Storage] = []
        self.added: list[Storage] = []

    def take(
        self, allocate: Allocate, machine: object, shape: Sequence[int], *like: object
    ) -> object:
        """The smallest that is free and large enough, or a new one."""
        (nbytes,) = shape
        if len(self.taken) in self._own:
            found = _new(allocate, machine, nbytes, like)
        else:
            fitting = (x for x in self._free if x.nbytes >= nbytes and x.like == like)
            known = next(fitting, None)
            if known is None:
                found = _new(allocate, machine, 1 << (max(nbytes, 1) - 1).bit_length(), like)
                self.added.append(found)
            else:
                found = known
                self._free.remove(known)
        self.taken.append(found)
        return found.held

    def places(self, tensors: Collection[tvm_ffi.Tensor]) -> set[int]:
        """Numbers of the allocations that tensors lie in."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        return {
            number
            for number, one in enumerate(self.taken)
            if any(one.has(address) for address in addresses)
        }


def _new(allocate: Allocate, machine: object, nbytes: int, like: tuple[object, ...]) -> Storage:
    held = allocate(machine, tvm_ffi.Shape((nbytes,)), *like)
    make = tvm_ffi.get_global_func(_MAKE_TENSOR)
    begin: tvm_ffi.Tensor = make(held, 0, tvm_ffi.Shape((1,)), tvm_ffi.dtype("uint8"))
    return Storage(held, begin.data_ptr(), nbytes, like)


@contextmanager
def allocating_by(allocate: Callable[..., object] | None) -> Iterator[None]:
    """Let virtual machines that are made within allocate by a function; None: as they do.

    They look TVM's own up when they are made. The function is given that one, and what a machine
    passes.
    """
    with _EXCHANGE:
        if allocate is None:
            yield
            return
        own = tvm_ffi.get_global_func(ALLOCATE)

        def exchanged(*arguments: object) -> object:
            return allocate(own, *arguments)

        tvm_ffi.register_global_func(ALLOCATE, exchanged, override=True)
        try:
            yield
        finally:
            tvm_ffi.register_global_func(ALLOCATE, own, override=True)
