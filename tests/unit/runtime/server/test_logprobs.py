from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

from tests import live_server
from tests.live_server import Live
from tests.scripted_engine import VOCABULARY, ScriptedEngine, encode, tiny_tokenizer

# The engine gives one token the logit 1 and all others 0.
MOST = 1 - math.log(math.e + VOCABULARY - 1)
LEAST = -math.log(math.e + VOCABULARY - 1)
ask = partial(live_server.ask, logprobs=True)


@pytest.mark.parametrize("stream", [False, True])
def test_each_token_of_the_answer_has_its_own(
    live: Live, engine: ScriptedEngine, stream: bool
) -> None:
    engine.reply = encode("<|channel>thought\nhm, so\n<channel|>It is ü.")
    answer = ask(live, stream=stream, top_logprobs=3)
    if stream:
        told = [c.choices[0].logprobs for c in answer if c.choices[0].logprobs]
        content = [token for logprobs in told for token in logprobs.content]
    else:
        assert answer.choices[0].message.content == "It is ü."
        content = answer.choices[0].logprobs.content
    said = [tiny_tokenizer().decode([i], skip_special_tokens=False) for i in encode("It is ü.")]
    assert [token.token for token in content] == said
    assert bytes(byte for token in content for byte in token.bytes) == "It is ü.".encode()
    for token in content:
        assert token.logprob == pytest.approx(MOST, abs=1e-5)
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[1].logprob == pytest.approx(LEAST, abs=1e-5)


def test_they_are_the_model_s_own_whatever_is_drawn(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode("yes")
    banned = {str(encode("yes")[0]): -100}
    content = ask(live, logit_bias=banned, max_tokens=1).choices[0].logprobs.content
    assert [token.logprob for token in content] == [pytest.approx(LEAST, abs=1e-5)]
    assert content[0].top_logprobs == []


def test_without_asking_there_are_none(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode("yes")
    assert ask(live, logprobs=False).choices[0].logprobs is None
    assert ask(live, logprobs=None).choices[0].logprobs is None
    text = live.client().completions.create(model="scripted", prompt="x")
    assert text.choices[0].logprobs is None
    text = live.client().completions.create(model="scripted", prompt="x", logprobs=0)
    assert text.choices[0].logprobs is not None
    assert text.choices[0].logprobs.top_logprobs is None
    expected = pytest.approx([MOST] * len(encode("yes")), abs=1e-5)
    assert text.choices[0].logprobs.token_logprobs == expected


@pytest.mark.parametrize("stream", [False, True])
def test_offsets_are_places_in_the_text(live: Live, engine: ScriptedEngine, stream: bool) -> None:
    said = ["<|channel>", "It", "<|turn>", " is", " ", *["\u00fc"], ".", "<|tool_call>"]
    engine.reply = encode("".join(said))
    answer = live.client().completions.create(
        model="scripted", prompt="x", logprobs=0, stream=stream
    )
    chunks: list[Any] = list(answer) if stream else [answer]
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    told = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    offsets = [offset for part in told for offset in part.text_offset]
    assert text == "It is \u00fc."
    # What the tokens before each make, decoded at once.
    tokenizer = tiny_tokenizer()
    ids = engine.reply[: len(offsets)]
    before = [tokenizer.decode(ids[:at]).rstrip("\ufffd") for at in range(len(ids))]
    assert offsets == [len(text) for text in before]
    assert len(ids) >= len(engine.reply) - 1


def test_offsets_of_a_stop_text_are_the_text_s_end(live: Live, engine: ScriptedEngine) -> None:
    engine.reply = encode("one two END more")
    answer = live.client().completions.create(
        model="scripted", prompt="x", logprobs=0, stop=["END more"]
    )
    (choice,) = answer.choices
    assert choice.text == "one two "
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset is not None
    assert max(choice.logprobs.text_offset) == len(choice.text)


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_said_has_a_number_for_json(
    live: Live, engine: ScriptedEngine, stream: bool
) -> None:
    engine.reply = encode("yes")
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": "no"}}}
    answer = ask(live, response_format=schema, top_logprobs=1, stream=stream)
    chunks = list(answer) if stream else [answer]
    told = [c.choices[0].logprobs for c in chunks if c.choices and c.choices[0].logprobs]
    assert "".join(token.token for part in told for token in part.content) == '"no"'
