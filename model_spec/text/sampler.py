"""The exported functions that turn logits into a token; the client calls them by name (abi.py)."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn

from gemma4_compile.operators.base import emit, emit_inplace
from gemma4_compile.operators.draws import BINS, DrawPartials, DrawProbs, DrawTopP
from gemma4_compile.operators.rows import CHUNK, ONE, Rows
from gemma4_compile.operators.sampling import (
    Bitmask,
    LogitBias,
    Penalty,
    SampleTopP,
    SoftmaxPartials,
    SoftmaxProbs,
)


@dataclass(frozen=True)
class SamplerOptions:
    """How a token is drawn.

    Attributes
    ----------
    softmax_blocks : runs of the vocabulary for the softmax
    by_masses : `draw_rows` adds up exact masses, for which blocks count in shared memory
    """

    softmax_blocks: int
    by_masses: bool = False


class SamplerModule(nn.Module):
    """Softmax, top-p sampling and the in-place changes of logits, for one sequence."""

    def __init__(self, vocab: int, options: SamplerOptions) -> None:
        self.vocab = vocab
        self.options = options

    def softmax_with_temperature(self, logits: nn.Tensor, temperature: nn.Tensor) -> nn.Tensor:
        """(1, 1, vocab) f32 and (1,) f32 -> probabilities (1, 1, vocab) f32."""
        return self._softmax(logits, temperature, ONE)

    def _softmax(self, logits: nn.Tensor, temperature: nn.Tensor, rows: Rows) -> nn.Tensor:
        """Probabilities in the shape of logits (1, n, vocab) f32; `rows` as an operator's."""
        blocks, n = self.options.softmax_blocks, logits.shape[1]
        args, spec = [logits, temperature], ((n, blocks, 2), "float32")
        (partials,) = emit(SoftmaxPartials(self.vocab, blocks, rows), args, [spec])
        spec = ((1, n, self.vocab), "float32")
        return emit(SoftmaxProbs(self.vocab, blocks, rows), [*args, partials], [spec])[0]

    def argsort_probs(self, probs: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """Hand the probabilities through twice.

        Only `sample_with_top_p` reads them, and it needs no order.
        """
        return probs, probs

    def sample_with_top_p(
        self,
        probs: nn.Tensor,
        indices: nn.Tensor,
        uniform: nn.Tensor,
        sample_index: nn.Tensor,
        top_p: nn.Tensor,
    ) -> nn.Tensor:
        """Draw a token: (1, vocab) f32 probabilities -> (1,) int32.

        `indices` is the hand-through of argsort_probs.
        """
        del indices, sample_index
        return self._sample(probs, uniform, top_p, ONE)

    def _sample(
        self, probs: nn.Tensor, uniform: nn.Tensor, top_p: nn.Tensor, rows: Rows
    ) -> nn.Tensor:
        """A token of each row of probabilities (n, vocab) f32; `rows` as an operator's."""
        operator, n = SampleTopP(self.vocab, rows), probs.shape[0]
        histogram = emit(operator.histogram, [probs], operator.histogram.results_of(n))
        return emit(operator, [probs, *histogram, uniform, top_p], [((n,), "int32")])[0]

    def draw_rows(
        self, logits: nn.Tensor, temperature: nn.Tensor, uniform: nn.Tensor, top_p: nn.Tensor
    ) -> nn.Tensor:
        """Draw a token from each row of logits: one launch of each kernel for all rows.

        (1, n, vocab) f32, (1,) f32, (n,) f32 and (1,) f32 -> (n,) int32, as
        `softmax_with_temperature` and `sample_with_top_p` draw one.
        """
        if self.options.by_masses:
            return self._draw_by_masses(logits, temperature, uniform, top_p)
        probs = self._softmax(logits, temperature, CHUNK)
        flat = nn.op.reshape(probs, (logits.shape[1], self.vocab))
        return self._sample(flat, uniform, top_p, CHUNK)

    def _draw_by_masses(
        self, logits: nn.Tensor, temperature: nn.Tensor, uniform: nn.Tensor, top_p: nn.Tensor
    ) -> nn.Tensor:
        vocab, blocks, n = self.vocab, self.options.softmax_blocks, logits.shape[1]
        partial, draw = DrawPartials(vocab, blocks, CHUNK), DrawTopP(vocab)
        args = [logits, temperature]
        partials, zeros = emit(partial, args, partial.results_of(n))
        masses, probs = emit_inplace(
            DrawProbs(vocab, blocks),
            [*args, partials, zeros],
            [3, -1],
            [((n, BINS), "int64"), ((n, vocab), "float32")],
        )
        found = emit(draw.bin, [probs, masses, top_p], draw.bin.results_of(n))
        return emit(draw, [probs, masses, top_p, *found, uniform], [((n,), "int32")])[0]

    def apply_logit_bias_inplace(
        self, logits: nn.Tensor, pos2seq: nn.Tensor, token_ids: nn.Tensor, bias: nn.Tensor
    ) -> nn.Tensor:
        """Add biases to logits (1, vocab) f32."""
        args = [logits, pos2seq, token_ids, bias]
        return emit_inplace(LogitBias(self.vocab), args, [0], [((1, self.vocab), "float32")])[0]

    def apply_penalty_inplace(
        self,
        logits: nn.Tensor,
        seq_ids: nn.Tensor,
        pos2seq: nn.Tensor,
        token_ids: nn.Tensor,
        counts: nn.Tensor,
        penalties: nn.Tensor,
    ) -> nn.Tensor:
        """Penalise tokens that were generated before, in logits (1, vocab) f32."""
        args = [logits, seq_ids, pos2seq, token_ids, counts, penalties]
        return emit_inplace(Penalty(self.vocab), args, [0], [((1, self.vocab), "float32")])[0]

    def apply_bitmask_inplace(
        self, logits: nn.Tensor, seq_ids: nn.Tensor, bitmask: nn.Tensor
    ) -> nn.Tensor:
        """Forbid the tokens that a grammar excludes, in logits (1, vocab) f32."""
        args = [logits, seq_ids, bitmask]
        return emit_inplace(Bitmask(self.vocab), args, [0], [((1, self.vocab), "float32")])[0]
