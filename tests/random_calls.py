"""What random logits become under a grammar of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemma4_compile.runtime.grammar.grammar import JsonGrammar
from gemma4_compile.runtime.reply.reply import MarkIds, ReplyParser
from gemma4_compile.runtime.sampling.sampling import Sampler, SamplingOptions
from tests.scripted_engine import END_OF_TURN, VOCABULARY, encode, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
STOP = (1, END_OF_TURN)


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name, "description": ""}
    return {
        "type": "function",
        "function": function | ({} if parameters is None else {"parameters": parameters}),
    }


def events_of(compile_grammar: Callable[[], JsonGrammar], seed: int, **options: Any) -> list[Any]:
    """Events of a reply in which some marks are more probable; `options` are `constrain`'s."""
    chooser = compile_grammar().constrain(Sampler(SamplingOptions(), seed), **options)
    marks = MarkIds.of(TOKENIZER)
    ends: Sequence[Any] = [marks.quote, marks.close_call, *STOP, *map(_only_id, '}]"')]
    rng = np.random.default_rng(seed)
    parser = ReplyParser(TOKENIZER)
    events: list[Any] = []
    for _ in range(3000):
        logits = rng.normal(0, 1, VOCABULARY).astype(np.float32)
        logits[ends] += 6
        token_id = chooser(logits)
        if token_id in STOP:
            return events + parser.finish()
        events += parser.push(token_id)
    raise AssertionError("the calls have no end")


def _only_id(letter: str) -> int:
    (token_id,) = encode(letter, TOKENIZER)
    return token_id
