from __future__ import annotations

from pathlib import Path

import pytest

from gemma4_compile.runtime import ContextFullError, Engine, Package, Sampler, SamplingOptions
from gemma4_compile.runtime.chat.completion import TextCompletion
from gemma4_compile.runtime.reply.reply import TextDelta

GREEDY = Sampler(SamplingOptions(temperature=0.0))
TURN = "<|turn>user\nWho are you?<turn|>\n<|turn>model\n"


@pytest.fixture(scope="module")
def completion(tiny_package: Path) -> TextCompletion:
    package = Package.open(tiny_package)
    return TextCompletion(Engine(package), package)


def said(completion: TextCompletion, text: str, most: int = 40) -> str:
    events = completion.events(text, GREEDY, max_tokens=most)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_text_goes_on_as_it_is(completion: TextCompletion) -> None:
    assert said(completion, TURN).startswith("I am tiny, a very small Gemma 4 model")
    assert completion.last_reply is not None
    assert completion.last_reply.finish_reason == "stop"
    begun = said(completion, f"{TURN}I am tiny, a very")
    assert begun.startswith(" small Gemma 4 model")


def test_every_text_begins_with_the_models_first_token_once(completion: TextCompletion) -> None:
    said(completion, TURN)
    assert completion.last_reply is not None
    tokens = completion.last_reply.prompt_tokens
    said(completion, f"<bos>{TURN}")
    assert completion.last_reply.prompt_tokens == tokens


def test_no_text_knows_of_those_before(completion: TextCompletion) -> None:
    first = said(completion, TURN)
    said(completion, "<|turn>user\nMy name is Clara.<turn|>\n<|turn>model\n")
    assert said(completion, TURN) == first


def test_a_text_that_does_not_fit_is_refused(completion: TextCompletion) -> None:
    with pytest.raises(ContextFullError):
        said(completion, "many words " * 1000)
    assert said(completion, TURN)
