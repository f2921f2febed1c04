"""Tokens of several sequences in one call, which gives the logits of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm_ffi

from gemma4_compile import abi
from gemma4_compile.runtime.device.device import Device, Feed, copy, view
from gemma4_compile.runtime.library.call_graphs import Tensors
from gemma4_compile.runtime.library.joint_graphs import JointGraphs
from gemma4_compile.runtime.library.native_library import Forward, NativeLibrary
from gemma4_compile.runtime.library.steps import Parameters

MOST_ROWS = 8
"""Rows of a call: the library takes one more, for which matmuls read tiles of eight again."""


class JointSteps:
    """The call for each number of rows, as of `JointGraphs`."""

    def __init__(
        self,
        library: NativeLibrary,
        device: Device,
        state: tvm_ffi.Object,
        params: Parameters,
        *,
        graphs: bool,
        function: str = abi.DECODE_ROWS,
    ) -> None:
        """Take the library's function, ArtifactError where it has none: see `NativeLibrary.has`.

        `function` : `DECODE_ROWS`, for a token of each, or `VERIFY_ROWS`, for some of each
        """
        self._state, self._params = state, params
        self._graphs = JointGraphs[Forward](
            library,
            device,
            lambda of: of.compiled_function(function),
            "steps of several sequences",
            graphs=graphs,
        )
        ids = device.empty((MOST_ROWS,), "int32")
        self._ids = [view(ids, (rows,)) for rows in range(1, MOST_ROWS + 1)]

    def forward(self, tokens: Sequence[int]) -> tvm_ffi.Tensor:
        """Logits (1, n, vocab_size) after n tokens, right until the next call of as many.

        Their sequences are those of the forward that the state began.
        """
        return self.run(tokens)[0]

    def run(self, tokens: Sequence[int]) -> Tensors:
        """As `forward`, all that the function gives: of tokens of `VERIFY_ROWS` states, too.

        Those are (n, hidden_size) float32, after the final norm.
        """
        return self._run(tvm_ffi.from_dlpack(np.array(tokens, np.int32)))

    def forward_drawn(self, tokens: tvm_ffi.Tensor) -> tvm_ffi.Tensor:
        """As `forward`, after tokens that are on the device, int32 (n,)."""
        return self._run(tokens)[0]

    def _run(self, tokens: tvm_ffi.Tensor) -> Tensors:
        rows = int(tokens.shape[0])
        ids = self._ids[rows - 1]
        copy(tokens, ids)
        return self._graphs.run(f"step of {rows} rows of several sequences", self._call, ids)

    @property
    def kernels(self) -> int:
        """Launches of the largest graph; 0 for none."""
        return self._graphs.kernels

    def _call(self, function: Forward, ids: tvm_ffi.Tensor) -> Tensors:
        *tensors, _ = function(ids, self._state, self._params)  # the last one is the state
        return tuple(tensors)


class JointDraws:
    """Draws from several rows at once: four launches for all, and no graph, as of a round's."""

    def __init__(self, library: NativeLibrary, device: Device) -> None:
        """Take the library's function; ArtifactError where it has none."""
        self._draw = library.compiled_function(abi.DRAW_ROWS)
        self._device = device
        self._options = [Feed(device, 1, "float32") for _ in range(2)]
        self._uniforms = device.empty((MOST_ROWS,), "float32")
        self._behind: tvm_ffi.Tensor | None = None  # rows that do not begin a tensor

    def launch(
        self,
        logits: tvm_ffi.Tensor,
        first: int,
        options: Sequence[float],
        uniforms: Sequence[float],
    ) -> tvm_ffi.Tensor:
        """Launch draws from some rows; the tokens, int32 (n,).

        Parameters
        ----------
        logits : float32 (1, rows, vocab_size)
        first : the first row; the library takes tensors from the begin of their memory on, so that
            others than 0 are copied
        options : temperature and top_p of all rows
        uniforms : a random number in [0, 1) for each
        """
        vocab_size = int(logits.shape[2])
        shape = 1, len(uniforms), vocab_size
        rows = view(logits, shape, 4 * vocab_size * first)
        if first:
            if self._behind is None:
                self._behind = self._device.empty((1, MOST_ROWS, vocab_size), "float32")
            rows, there = view(self._behind, shape), rows
            copy(there, rows)
        numbers = view(self._uniforms, (len(uniforms),))
        copy(tvm_ffi.from_dlpack(np.array(uniforms, np.float32)), numbers)
        pairs = zip(self._options, options, strict=True)
        temperature, top_p = (feed.write([value]) for feed, value in pairs)
        drawn: tvm_ffi.Tensor = self._draw(rows, temperature, numbers, top_p)
        return drawn
