"""Holds a reply to a JSON schema, token by token, with the `llguidance` library (an extra)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.engine import Float32Array
from gemma4_compile.runtime.generation import TokenChooser
from gemma4_compile.runtime.reply import MarkIds

if TYPE_CHECKING:
    import llguidance

INSTALL = "pip install 'gemma4-compile[json]'"


class GrammarError(Gemma4CompileError):
    """The grammar engine gave up, for instance at a schema that grows too complex."""


class Grammars:
    """Compiles JSON schemas for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Sequence[int]) -> None:
        """Prepare; the tokenizer is read when the first schema comes.

        Parameters
        ----------
        vocab_size : length of the logits
        stop_ids : tokens that end a reply
        """
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_ids = list(stop_ids)

    @cached_property
    def _library(self) -> Any:
        try:
            import llguidance
        except ImportError as error:
            raise UsageError(
                "JSON schemas need the package `llguidance`, which is not installed",
                hint=f"run `{INSTALL}`",
            ) from error
        return llguidance

    @cached_property
    def _words(self) -> llguidance.LLTokenizer:
        return self._library.LLTokenizer(
            self._tokenizer.to_str(), n_vocab=self._vocab_size, eos_token=self._stop_ids
        )

    def compile(self, schema: Mapping[str, Any]) -> JsonGrammar:
        """Compile a schema; whitespace between its parts is left out.

        Raises
        ------
        UsageError
            If llguidance is not installed, or cannot follow the schema.
        """
        matcher = self._library.LLMatcher
        options = {"whitespace_flexible": False}
        grammar = matcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
        failed, messages = matcher.validate_grammar_with_warnings(grammar, self._words)
        if failed:
            raise UsageError(
                f"the JSON schema cannot be followed: {'; '.join(messages)}",
                hint="leave out what it names, or ask for the same in plainer words of JSON schema",
            )
        return JsonGrammar(matcher(self._words, grammar), MarkIds.of(self._tokenizer))


class JsonGrammar:
    """A compiled schema."""

    def __init__(self, matcher: llguidance.LLMatcher, marks: MarkIds) -> None:
        self._matcher, self._marks = matcher, marks

    def constrain(self, chooser: TokenChooser, *, thinking: bool = False) -> TokenChooser:
        """A chooser for one reply that takes only what the schema allows.

        Parameters
        ----------
        chooser : chooses among what is allowed
        thinking : let the reply begin with a thought, in which everything is allowed
        """
        return _Constrained(self._matcher.deep_copy(), chooser, self._marks, thinking)


class _Constrained:
    """Chooses the tokens of one reply."""

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        chooser: TokenChooser,
        marks: MarkIds,
        thinking: bool,
    ) -> None:
        self._matcher, self._chooser, self._marks = matcher, chooser, marks
        self._may_think = thinking and marks.open_channel is not None
        self._in_thought = False

    def __call__(self, logits: Float32Array) -> int:
        """Choose a token id from logits (vocab_size,).

        Raises
        ------
        GrammarError
            If the engine gives up.
        """
        if self._in_thought:
            token_id = self._chooser(logits)
            self._in_thought = token_id != self._marks.close_channel
            return token_id
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise GrammarError(f"the JSON schema cannot be followed: {self._matcher.get_error()}")
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").astype(bool)
        if self._may_think:
            allowed[self._marks.open_channel] = True
        token_id = self._chooser(np.where(allowed, logits, np.float32(-np.inf)))
        if self._may_think and token_id == self._marks.open_channel:
            self._in_thought = True
        else:
            self._matcher.consume_token(token_id)
        self._may_think = False
        return token_id
