"""The drafter as Relax modules, and the function that a package exports for it.

One round, as transformers has it: the target has processed the positions before p and chosen the
token at p. The drafter takes that token's embedding and the target's final normed hidden state at
p - 1, drafts the token at p + 1, and hands on a hidden state for the next draft. Every draft of a
round is made at position p, on the target's keys and values before p: drafts see one another
through the hidden state alone.

References
----------
transformers 5.24.0, models/gemma4_assistant/modeling_gemma4_assistant.py.
"""

from __future__ import annotations

import numpy as np
from tvm.relax.frontend import nn

from gemma4_compile.model_spec.component import ExportOptions
from gemma4_compile.model_spec.config.drafter import DrafterConfig
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.drafter.layer_plan import drafter_plans
from gemma4_compile.model_spec.drafter.parameters import STEM, head_name
from gemma4_compile.model_spec.layers.attention import AttentionContext
from gemma4_compile.model_spec.layers.kv_cache import KvTensors
from gemma4_compile.model_spec.layers.norm import Norm, Vector
from gemma4_compile.model_spec.matrices import Matrices
from gemma4_compile.model_spec.text.decoder import MAX_ROWS, DecoderLayer, Stream
from gemma4_compile.model_spec.text.kv_layout import kv_layout
from gemma4_compile.model_spec.text.layer_plan import layer_plans
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.drafting import (
    LOGITS_OF_BLOCK,
    BestToken,
    BestTokenPartials,
    ClusterTokens,
)
from gemma4_compile.operators.rows import ONE, Joint, rows_of_extent


class MaskedEmbedding(nn.Module):
    """The clusters of the vocabulary: their centroids, and their tokens one after the other."""

    def __init__(self, drafter: DrafterConfig, matrices: Matrices) -> None:
        self.centroids = matrices.matrix(f"{STEM}masked_embedding.centroids")
        self.token_ordering = Vector(drafter.vocab_size)
        self._sizes = drafter.num_centroids, drafter.centroid_top_k, drafter.vocab_size

    def forward(self, hidden: nn.Tensor) -> nn.Tensor:
        """The tokens of the clusters nearest to each state (rows, hidden_size), int32.

        (candidates,) of one row, (rows, candidates) of others.
        """
        extent = hidden.shape[0]
        rows = rows_of_extent(extent)
        operator = ClusterTokens(*self._sizes, rows)
        args = [self.centroids.matmul(hidden, rows), self.token_ordering.weight]
        return emit(operator, args, [((*rows.lead(extent), operator.count), "int32")])[0]


class Drafter(nn.Module):
    """Projection, layers, head."""

    def __init__(self, config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> None:
        drafter = config.drafter
        assert drafter is not None, "a package with a drafter"
        self.config = drafter
        self.layout = kv_layout(
            config,
            layer_plans(config),
            options.activation_dtype,
            options.prefill_chunk,
            pads_pictures=options.pads_pictures,
            limits=options.kv_limits,
        )
        self.pre_projection = matrices.matrix(f"{STEM}pre_projection")
        self.layers = nn.ModuleList(
            [
                DecoderLayer(plan, drafter, matrices, options, STEM)
                for plan in drafter_plans(drafter, config)
            ]
        )
        self.norm = Norm(drafter.hidden_size, drafter.rms_norm_eps, options.activation_dtype)
        self.post_projection = matrices.matrix(f"{STEM}post_projection")
        head = matrices.matrix(f"{STEM}{head_name(drafter)}")
        if drafter.ties_head:
            self.embed_tokens = head
        else:
            self.lm_head = head
        if drafter.num_centroids:
            self.masked_embedding = MaskedEmbedding(drafter, matrices)

    def forward(
        self, embedding: nn.Tensor, hidden: nn.Tensor, positions: nn.Tensor, state: nn.Object
    ) -> tuple[nn.Tensor, ...]:
        """Draft one token; arguments and results as of `DrafterFunctions.draft_token`."""
        kv = KvTensors(self.layout, state)
        kv.positions = positions
        if self.layout.padding_slot is not None:
            kv.count_padding(embedding, ONE)
            # A draft sees the rows before its position, and not its own.
            own = nn.Tensor.from_const(np.array([0, 0, 1, 0], np.int32))
            kv.positions = nn.op.subtract(kv.positions, own)
        return self._draft(embedding, hidden, kv)

    def forward_rows(
        self, embeddings: nn.Tensor, hidden: nn.Tensor, state: nn.Object
    ) -> tuple[nn.Tensor, ...]:
        """Draft a token of each row; arguments and results as of `DrafterFunctions.draft_rows`."""
        kv = KvTensors(self.layout, state, Joint(MAX_ROWS), behind=1)
        return self._draft(embeddings, hidden, kv)

    def _draft(
        self, embeddings: nn.Tensor, hidden: nn.Tensor, kv: KvTensors
    ) -> tuple[nn.Tensor, ...]:
        """Tokens (rows,) int32, states of the next drafts, logits, and whose where few have one."""
        rows = rows_of_extent(embeddings.shape[0])
        residual = self.pre_projection.matmul(nn.op.concat([embeddings, hidden], dim=1), rows)
        stream, context = Stream(residual), AttentionContext(kv)
        for layer in self.layers:
            stream = layer(stream, context)
        normed = self.norm(stream.residual)
        tokens, candidates = self._head(normed)
        return (tokens, self.post_projection.matmul(normed, rows), *candidates)

    def _head(self, hidden: nn.Tensor) -> tuple[nn.Tensor, list[nn.Tensor]]:
        """The best tokens (rows,) int32; all logits, and whose they are where clusters chose."""
        head = self.embed_tokens if self.config.ties_head else self.lm_head
        if not self.config.num_centroids:
            candidates = [head.matmul(hidden, rows_of_extent(hidden.shape[0]))]
        else:
            tokens = self.masked_embedding.forward(hidden)
            candidates = [head.matmul_of(hidden, tokens), tokens]
        return best_token(candidates), candidates


def best_token(candidates: list[nn.Tensor]) -> nn.Tensor:
    """The best (rows,) int32 of logits (rows, n) and, if these are not all tokens', their tokens.

    Those are (n,) of one row, (rows, n) of others.
    """
    extent, count = candidates[0].shape[0], int(candidates[0].shape[1])
    rows, listed = rows_of_extent(extent), len(candidates) > 1
    if count > LOGITS_OF_BLOCK and not listed:
        partials = BestTokenPartials(count, rows)
        count, listed = partials.blocks, True
        outputs = [((extent, count), "float32"), ((*rows.lead(extent), count), "int32")]
        candidates = list(emit(partials, candidates, outputs))
    return emit(BestToken(count, listed, rows), candidates, [((extent,), "int32")])[0]


class DrafterFunctions(nn.Module):
    """Exports of a package; its parameters have the drafter's names."""

    def __init__(self, config: Gemma4Config, matrices: Matrices, options: ExportOptions) -> None:
        self.drafter = Drafter(config, matrices, options)

    def draft_token(
        self, embedding: nn.Tensor, hidden: nn.Tensor, positions: nn.Tensor, kv: nn.Object
    ) -> tuple[nn.Tensor, ...]:
        """Draft the token after one.

        Parameters
        ----------
        embedding : (1, backbone_hidden_size) float32, the token's as `embed` gives it
        hidden : (1, backbone_hidden_size) float32, the target's state before it after the final
            norm, or what the draft before returned
        positions : (4,) int32: p, 1, p, 0 for the round's position p, which is at least 1
        kv : its rotary table begins with position p, as after `begin_forward`

        Returns
        -------
        tuple
            The token (1,) int32, a state (1, backbone_hidden_size) float32 for the next draft, the
            logits of all candidates (1, n) float32 and, where clusters chose them, the candidates
            (n,) int32.
        """
        return self.drafter.forward(embedding, hidden, positions, kv)

    def draft_rows(
        self, embeddings: nn.Tensor, hidden: nn.Tensor, kv: nn.Object
    ) -> tuple[nn.Tensor, ...]:
        """Draft a token of each of several sequences, as `draft_token` does of one.

        Parameters
        ----------
        embeddings, hidden : (n, backbone_hidden_size) float32
        kv : it has slots and positions, as after `begin_forward` with a token of each

        Returns
        -------
        tuple
            Tokens (n,) int32, states (n, backbone_hidden_size) float32, logits of the candidates
            (n, count) float32 and, where clusters chose them, the candidates (n, count) int32.
        """
        return self.drafter.forward_rows(embeddings, hidden, kv)
