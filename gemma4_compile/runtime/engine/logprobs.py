"""Log probabilities of a reply's tokens, as the model gave them: before sampling and grammars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_compile.runtime.reply.reply import MarkIds
from gemma4_compile.runtime.sampling.sampling import (
    Float32Array,
    PromptReader,
    TokenChooser,
    most_probable,
)


@dataclass(frozen=True)
class TokenLogprob:
    """A token that was chosen.

    Attributes
    ----------
    logprob : natural logarithm of its probability
    top : the most probable tokens there and theirs, the most probable first
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprob(logits: Float32Array, token_id: int, top: int) -> TokenLogprob:
    """How probable a token is by logits (vocab_size,), beside the `top` most probable ones."""
    wide = logits.astype(np.float64) - logits.max()
    logprobs = wide - np.log(np.exp(wide).sum())
    ids = most_probable(logits, top).tolist() if top else []
    others = tuple((token, float(logprobs[token])) for token in ids)
    return TokenLogprob(token_id, float(logprobs[token_id]), others)


class LogprobRecorder:
    """A chooser that lets another choose, and writes down how probable that was.

    Attributes
    ----------
    tokens : one for every token so far, the one that ends the reply included
    """

    def __init__(self, chooser: TokenChooser, top: int) -> None:
        """Record; `top` tokens are compared with each that is chosen."""
        self._chooser, self._top = chooser, top
        self.tokens: list[TokenLogprob] = []

    def begin(self, prompt: Sequence[int]) -> None:
        """Begin a reply."""
        self.tokens = []
        if isinstance(self._chooser, PromptReader):
            self._chooser.begin(prompt)

    def __call__(self, logits: Float32Array) -> int:
        """Choose a token id from logits (vocab_size,)."""
        token_id = self._chooser(logits)
        self.tokens.append(token_logprob(logits, token_id, self._top))
        return token_id


class AnswerTokens:
    """Tells which tokens of a reply are the answer's: no marks, no reasoning, no calls."""

    def __init__(self, marks: MarkIds, *, in_reasoning: bool) -> None:
        """Begin a reply; `in_reasoning` where the prompt has opened it."""
        self._marks = marks
        self._outside = in_reasoning

    def push(self, token_id: int) -> bool:
        """Return whether this token, the next of the reply, is one of the answer."""
        marks = self._marks
        if token_id in (marks.open_channel, marks.open_call):
            self._outside = True
            return False
        if token_id in (marks.close_channel, marks.close_call):
            self._outside = False
            return False
        return not self._outside
