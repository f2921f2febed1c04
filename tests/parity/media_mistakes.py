"""Known mistakes in what pictures and sounds see, each planted into the compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
from tvm import tirx
from tvm.relax.frontend import nn

from gemma4_compile import abi
from gemma4_compile.model_spec.config.gemma4 import Gemma4Config
from gemma4_compile.model_spec.layers import attention
from gemma4_compile.model_spec.layers.kv_cache import KvTensors
from gemma4_compile.operators import picture_attention
from gemma4_compile.operators.attention import PrefillAttention
from gemma4_compile.operators.base import emit
from gemma4_compile.operators.rows import Rows
from gemma4_compile.operators.tir import i32
from gemma4_compile.operators.types import Expr

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class MediaMistake:
    """What to change while a library is compiled, and for which kind it matters."""

    kind: str = "dense"
    config: Callable[[Gemma4Config], Gemma4Config] = lambda config: config
    patch: Patch = lambda monkeypatch: None


def _full_layers_open(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.Attention._chunk

    def wrong(
        self: attention.Attention,
        q: nn.Tensor,
        kv: KvTensors,
        rows: Rows,
        last_rows: nn.Tensor | None,
    ) -> nn.Tensor:
        if last_rows is None:
            return right(self, q, kv, rows, None)
        operator = PrefillAttention(
            sees_pictures=True,
            rows=rows,
            window=self.plan.window,
            out_dtype=self.activation_dtype,
            **self._cache_fields(kv),
        )
        args = [q, *kv.get(self.plan.kv_slot), kv.positions, last_rows]
        return emit(operator, args, [(tuple(q.shape), self.activation_dtype)])[0]

    monkeypatch.setattr(attention.Attention, "_chunk", wrong)


def _sounds_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        picture_attention, "is_picture", lambda modality: modality != i32(abi.MODALITY_TEXT)
    )


def _pictures_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = i32(abi.MODALITY_AUDIO)
    monkeypatch.setattr(picture_attention, "is_picture", lambda modality: modality != sound)


def _window_without_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a chunk sees as far back as the ring has rows."""

    right = PrefillAttention.first_key

    def first_key(self: PrefillAttention, position: Expr) -> Expr:
        if not self.sees_pictures or self.window is None:
            return right(self, position)
        return tirx.max(position - i32(2 * self.window - 1), i32(0))

    monkeypatch.setattr(PrefillAttention, "first_key", first_key)


MISTAKES: Mapping[str, MediaMistake] = {
    "pictures causal": MediaMistake(config=lambda c: replace(c, bidirectional_images=False)),
    "pictures causal, 12B": MediaMistake(
        "unified", config=lambda c: replace(c, bidirectional_images=False)
    ),
    "full layers open": MediaMistake(patch=_full_layers_open),
    "full layers open, 12B": MediaMistake("unified", patch=_full_layers_open),
    "full layers open, experts": MediaMistake("moe", patch=_full_layers_open),
    "pictures of E2B open": MediaMistake(
        "e2b", config=lambda c: replace(c, bidirectional_images=True)
    ),
    "sounds open": MediaMistake(patch=_sounds_open),
    "text between pictures open": MediaMistake(patch=_pictures_are_one),
    "no window behind a picture": MediaMistake(patch=_window_without_its_bound),
    "per-layer embedding of another token": MediaMistake(
        "e2b", config=lambda c: replace(c, pad_token_id=5)
    ),
}
