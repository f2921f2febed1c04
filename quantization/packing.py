"""Integers of 4 or 8 bits in 32-bit words: the lowest channel in the lowest bits.

Channel ``c`` of a row lies in word ``c // n``, bits ``bits * (c % n)`` upwards, with
``n = 32 / bits`` channels to a word.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInt8Array = npt.NDArray[np.uint8]
UInt32Array = npt.NDArray[np.uint32]


def pack(values: UInt8Array, bits: int) -> UInt32Array:
    """Pack integers of 4 or 8 bits into words.

    Parameters
    ----------
    values : (rows, cols), uint8, each below ``2**bits``; ``32 / bits`` divides cols

    Returns
    -------
    UInt32Array
        (rows, cols * bits / 32)
    """
    if bits == 4:
        pairs = np.ascontiguousarray(values).view("<u2")  # the even channel is the low byte
        values = (pairs | (pairs >> np.uint16(4))).astype(np.uint8)
    else:
        assert bits == 8, f"no layout for {bits} bits"
    return np.ascontiguousarray(values).view("<u4").astype(np.uint32, copy=False)


def unpack(words: UInt32Array, bits: int) -> UInt8Array:
    """Undo :func:`pack`: (rows, words) uint32 to (rows, words * 32 / bits) uint8."""
    octets = np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)
    if bits == 8:
        return octets
    assert bits == 4, f"no layout for {bits} bits"
    values = np.empty((octets.shape[0], 2 * octets.shape[1]), np.uint8)
    values[:, 0::2] = octets & np.uint8(15)
    values[:, 1::2] = octets >> np.uint8(4)
    return values
