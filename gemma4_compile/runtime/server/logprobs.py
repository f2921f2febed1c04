"""Log probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tokenizers import Tokenizer

from gemma4_compile.runtime.engine.logprobs import (
    AnswerTokens,
    LogprobRecorder,
    TokenLogprob,
    token_logprob,
)
from gemma4_compile.runtime.reply.detokenizer import StreamingDetokenizer
from gemma4_compile.runtime.sampling.sampling import Float32Array, TokenChooser
from gemma4_compile.types import JsonObject

_LEAST = -9999.0  # for what has no probability: JSON knows no infinity
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\ufffd"


class EchoLogprobs:
    """Log probabilities of a prompt that is repeated, for all of its replies.

    Attributes
    ----------
    text : of the prompt, as it is repeated
    tokens : of the prompt, as the client gave it
    found : of those that have any, which are all but the very first of what the model reads
    """

    def __init__(self, text: str, tokens: Sequence[int], top: int) -> None:
        self.text, self.tokens, self._top = text, tuple(tokens), top
        self.found: list[TokenLogprob] = []

    def watch(self, token_id: int, logits: Float32Array) -> None:
        """Hear of a token of the prompt, and of the logits before it; in the worker's thread."""
        self.found.append(token_logprob(logits, token_id, self._top))


class ReplyLogprobs:
    """Log probabilities of one reply; written by the worker's thread, read by the event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        top: int,
        answer: AnswerTokens | None,
        echo: EchoLogprobs | None = None,
    ) -> None:
        """Prepare.

        Parameters
        ----------
        top : with how many tokens each is compared
        answer : selects the tokens that are listed; None: all of them
        echo : of the prompt, which a text begins with
        """
        self._echo = echo
        self._tokenizer, self._top, self._answer = tokenizer, top, answer
        self._recorder: LogprobRecorder | None = None
        self._told = 0
        self._detokenizer = StreamingDetokenizer(tokenizer)
        self._offset = 0

    def recording(self, chooser: TokenChooser) -> TokenChooser:
        """A chooser that writes down what `chooser` does."""
        self._recorder = LogprobRecorder(chooser, self._top)
        return self._recorder

    def chat(self, until: int) -> JsonObject:
        """`logprobs` of a chat's choice: the reply's tokens that were not listed yet.

        Parameters
        ----------
        until : how many tokens the reply has by now
        """
        content = []
        for token in self._next(until):
            top = [self._chat_token(*pair) for pair in token.top]
            entry = self._chat_token(token.token_id, token.logprob)
            content.append({**entry, "top_logprobs": top})
        return {"content": content, "refusal": None}

    @property
    def echoes(self) -> bool:
        """Return whether those of the prompt come before those of the reply."""
        return self._echo is not None

    def text(self, until: int, text: str | None = None) -> JsonObject:
        """`logprobs` of a text's choice behind what is repeated, otherwise as `chat`.

        Parameters
        ----------
        text : all of the reply's text, once it is known: tokens of a stop text lie at its end
        """
        before = 0 if self._echo is None else len(self._echo.text)
        tokens = self._next(until)
        texts = [self._text(token.token_id) for token in tokens]
        offsets = []
        for token in tokens:
            # Not by the token's own text: a control token is none of the choice's, and the bytes
            # of one character have a text only together.
            offset = self._offset if text is None else min(self._offset, len(text))
            offsets.append(before + offset)
            self._offset += len(self._detokenizer.push(token.token_id))
        return {
            "tokens": texts,
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [self._tops(token) for token in tokens] if self._top else None,
            "text_offset": offsets,
        }

    def whole(self, until: int, text: str) -> JsonObject:
        """`logprobs` of a whole choice: of what is repeated and of the reply, as `text`."""
        reply = self.text(until, text)
        if self._echo is None:
            return reply
        before = self.prompt()
        return {
            name: None if reply[name] is None else [*before[name], *reply[name]] for name in before
        }

    def _tops(self, token: TokenLogprob) -> JsonObject:
        return {self._text(i): _finite(value) for i, value in token.top}

    def prompt(self) -> JsonObject:
        """`logprobs` of what is repeated, once the prompt has been read."""
        echo = self._echo
        assert echo is not None, "the prompt is repeated"
        count = len(echo.tokens)
        known: list[TokenLogprob | None] = [None, *echo.found][-count:] if count else []
        tops = [None if token is None else self._tops(token) for token in known]
        return {
            "tokens": [self._text(token) for token in echo.tokens],
            "token_logprobs": [None if t is None else _finite(t.logprob) for t in known],
            "top_logprobs": tops if self._top else None,
            "text_offset": self._offsets(echo),
        }

    def _offsets(self, echo: EchoLogprobs) -> list[int]:
        """Where the tokens of the prompt begin in its text."""
        special = self._tokenizer.get_added_tokens_decoder()
        detokenizer, offset, offsets = StreamingDetokenizer(self._tokenizer), 0, []
        for token_id in echo.tokens:
            offsets.append(min(offset, len(echo.text)))
            hidden = token_id in special and special[token_id].special
            text = self._text(token_id) if hidden else detokenizer.push(token_id)
            offset += len(text)
        return offsets

    def _next(self, until: int) -> list[TokenLogprob]:
        """Tokens up to `until` that were not listed, of the answer alone."""
        recorded = [] if self._recorder is None else self._recorder.tokens[self._told : until]
        self._told = until
        return [t for t in recorded if self._answer is None or self._answer.push(t.token_id)]

    def _chat_token(self, token_id: int, logprob: float) -> JsonObject:
        text = self._text(token_id)
        byte = _BYTE.fullmatch(self._tokenizer.id_to_token(token_id) or "")
        raw: list[int] | None = list(text.encode())
        if byte is not None:
            raw = [int(byte[1], 16)]
        elif _REPLACEMENT in text:
            raw = None
        return {"token": text, "logprob": _finite(logprob), "bytes": raw}

    def _text(self, token_id: int) -> str:
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST
