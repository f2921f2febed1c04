"""transformers' text decoder with one layer's weights in memory, and what is done with each layer.

This module needs torch and transformers (`gemma4-compile[verify]`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from gemma4_compile.calibration.finite import check_finite
from gemma4_compile.model_spec.text.parameters import HEAD
from gemma4_compile.quantization.convert import RowReader
from gemma4_compile.types import JsonObject
from gemma4_compile.verification import streams
from gemma4_compile.verification.attention_blocks import Untyped
from gemma4_compile.verification.heads import HEAD_BLOCK_BYTES, Shapes, Weights
from gemma4_compile.verification.transformer import fill, fill_ends, make_model, text_config

__all__ = ["BEFORE_LAYERS", "Layer", "Rows", "StreamedModel", "text_config"]

BEFORE_LAYERS = "per_layer_model_projection"
Rows = list[list[int]]


@dataclass(frozen=True)
class Layer:
    """A layer that has just run, its weights still there.

    Attributes
    ----------
    prefix : of its tensors in the checkpoint
    inputs : rows of every matrix, (positions, channels), by the tensor's name
    routed : of experts: their rows, and the experts (positions, top_k) of each
    """

    prefix: str
    module: Untyped
    inputs: Mapping[str, torch.Tensor]
    routed: tuple[torch.Tensor, torch.Tensor] | None = None


class StreamedModel:
    """A checkpoint's text decoder, read layer by layer in every pass."""

    def __init__(self, text: JsonObject, dtype: str, read: RowReader, shapes: Shapes) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._weights = Weights(read, shapes)
        with torch.no_grad():
            self.model = make_model(text)
            # Masks of texts that are filled up are not for attention in blocks.
            self.model.set_attn_implementation("eager")
            fill_ends(self.model, dtype, self._weights)
        for name in (
            "norm",
            BEFORE_LAYERS,
            "per_layer_projection_norm",
            "rotary_emb",
            *streams.ENDS,
        ):
            module = getattr(self.model, name, None)
            if module is not None:
                module.to(self.device)

    def visit(self, rows: Rows, visit: Callable[[Layer], None]) -> None:
        """Run sequences once; every layer is visited before its weights go."""
        ids, mask = _padded(rows)
        real = mask.reshape(-1).bool().to(self.device)
        with torch.no_grad():
            hooks = [self._watch(BEFORE_LAYERS, real, visit)] if self._before_layers else []
            hooks += [
                hook
                for index in range(len(self.model.layers))
                for hook in self._stream(index, real, visit)
            ]
            try:
                self._forward(ids, mask, use_cache=False)
            finally:
                for hook in hooks:
                    hook.remove()

    def continued(
        self,
        prompts: Rows,
        steps: int,
        seed: int,
        suppressed: Sequence[int],
        ends: Collection[int],
        advance: Callable[[int], None],
    ) -> Rows:
        """Sequences with up to `steps` tokens more, drawn from what the model thinks of them.

        Each pass over the layers gives one token of every sequence. One ends with the first token
        of `ends`: what a model says after its turn is no text of its own.
        """
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
        dice = torch.Generator().manual_seed(seed)
        cache = DynamicCache(config=self.model.config)
        given, going = ids, torch.ones(len(prompts), dtype=torch.bool)
        written: list[torch.Tensor] = []
        with torch.no_grad():
            hooks = [
                hook
                for index in range(len(self.model.layers))
                for hook in self._stream(index, None, None)
            ]
            try:
                for _ in range(steps):
                    last = self._forward(given, mask, use_cache=True, cache=cache)[:, -1]
                    chances = self._chances(last, suppressed)
                    check_finite(chances, "the head")
                    given = torch.multinomial(chances, 1, generator=dice)
                    written.append(given)
                    mask = torch.cat([mask, torch.ones_like(given)], dim=1)
                    going &= ~torch.isin(given[:, 0], torch.tensor(sorted(ends)))
                    advance(1)
                    if not going.any():
                        break
            finally:
                for hook in hooks:
                    hook.remove()
        new = torch.cat(written, dim=1).tolist()
        return [[*row, *_until(more, ends)] for row, more in zip(prompts, new, strict=True)]

    @property
    def _before_layers(self) -> bool:
        return getattr(self.model, BEFORE_LAYERS, None) is not None

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, **options: Untyped) -> torch.Tensor:
        places = (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        given: dict[str, Untyped] = {"inputs_embeds": self.model.embed_tokens(ids).to(self.device)}
        if getattr(self.model, "embed_tokens_per_layer", None) is not None:
            inputs = streams.per_layer_inputs(self.model, ids)
            given["per_layer_inputs"] = inputs.to(self.device)
        elif self.model.config.num_kv_shared_layers:
            given["output_hidden_states"] = True  # see `run_transformers`
        output = self.model(
            **given,
            attention_mask=mask.to(self.device),
            position_ids=places.to(self.device),
            **options,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def _stream(
        self, index: int, real: torch.Tensor | None, visit: Callable[[Layer], None] | None
    ) -> list[Untyped]:
        """Fill a layer before it runs, let it be visited after it, and drop its weights."""
        prefix, layer = f"layers.{index}.", self.model.layers[index]

        def before(module: Untyped, _: object) -> None:
            fill(module, prefix, self._weights)
            module.to(self.device)

        def after(module: Untyped, _: object, __: object) -> None:
            module.to_empty(device="meta")

        filled = layer.register_forward_pre_hook(before)
        watch = [] if visit is None or real is None else self._watchers(layer, prefix, real, visit)
        return [filled, *watch, layer.register_forward_hook(after)]

    def _watchers(
        self, layer: Untyped, prefix: str, real: torch.Tensor, visit: Callable[[Layer], None]
    ) -> list[Untyped]:
        inputs: dict[str, torch.Tensor] = {}
        routed: list[tuple[torch.Tensor, torch.Tensor]] = []
        hooks, seen = [], {}

        def note(name: str) -> Callable[[Untyped, tuple[Untyped, ...]], None]:
            def before(_: Untyped, given: tuple[Untyped, ...]) -> None:
                # Matrices with the same input share its rows.
                key = given[0].data_ptr(), given[0].shape
                if key not in seen:
                    seen[key] = given[0].reshape(-1, given[0].shape[-1])[real], given[0]
                inputs[name] = seen[key][0]

            return before

        def note_experts(_: Untyped, given: tuple[Untyped, ...]) -> None:
            routed.append((given[0][real], given[1][real]))

        def after(module: Untyped, _: object, __: object) -> None:
            visit(Layer(prefix, module, dict(inputs), routed[0] if routed else None))
            inputs.clear()
            seen.clear()
            routed.clear()

        for name, module in layer.named_modules():
            if isinstance(module, torch.nn.Linear):
                hooks.append(module.register_forward_pre_hook(note(f"{prefix}{name}.weight")))
        if getattr(layer, "experts", None) is not None:
            hooks.append(layer.experts.register_forward_pre_hook(note_experts))
        return [*hooks, layer.register_forward_hook(after)]

    def _watch(self, name: str, real: torch.Tensor, visit: Callable[[Layer], None]) -> Untyped:
        """Visit a matrix that no layer has."""

        def after(module: Untyped, given: tuple[Untyped, ...], _: object) -> None:
            rows = given[0].reshape(-1, given[0].shape[-1])[real]
            visit(Layer("", self.model, {f"{name}.weight": rows}))

        return getattr(self.model, name).register_forward_hook(after)

    def _chances(self, normed: torch.Tensor, suppressed: Sequence[int]) -> torch.Tensor:
        """Probabilities of the next token, (sequences, vocab_size), by the head in blocks."""
        config = self.model.config
        own = f"{HEAD}.weight"
        name = own if own in self._weights.shapes else "embed_tokens.weight"
        block = max(1, HEAD_BLOCK_BYTES // (4 * normed.shape[1]))
        parts = []
        for begin in range(0, config.vocab_size, block):
            end = min(begin + block, config.vocab_size)
            rows = torch.from_numpy(self._weights.read(name, begin, end)).to(self.device)
            parts.append((normed @ rows.T).cpu())
        logits, cap = torch.cat(parts, dim=1), config.final_logit_softcapping
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        logits[:, list(suppressed)] = -torch.inf
        return logits.softmax(-1)


def _until(row: list[int], ends: Collection[int]) -> list[int]:
    """A row up to its first end."""
    found = [place for place, one in enumerate(row) if one in ends]
    return row[: found[0] + 1] if found else row


def _padded(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask
