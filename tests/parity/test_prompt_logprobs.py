"""Log probabilities of prompts, as programs that measure models ask for them, by transformers'."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4_compile.runtime import Package
from tests import hf
from tests.live_server import Live, serving_package

pytestmark = pytest.mark.parity

ATOL = 1e-4  # of logarithms, as of logits in float32
TEXT = "2 plus 3 is 5.\nWhat is 8 plus 19? é\U0001f600"


@pytest.fixture(scope="module")
def package(tiny_package: Path) -> Package:
    return Package.open(tiny_package)


@pytest.fixture(scope="module")
def live(package: Package) -> Iterator[Live]:
    with serving_package(package, "tiny", sequences=2) as live:
        yield live


@pytest.fixture(scope="module")
def theirs(tiny_package: Path) -> Any:
    """The model in transformers, on the weights of the package."""
    return hf.tiny(tiny_package, "f32")


def expected(model: Any, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log probabilities (len(ids) - 1, vocab_size) of what follows each token."""
    logits = hf.logits(model, np.array(ids)).astype(np.float64)[:-1]
    wide = logits - logits.max(-1, keepdims=True)
    logged: np.ndarray[Any, np.dtype[np.float64]] = wide - np.log(np.exp(wide).sum(-1))[:, None]
    return logged


def ask(live: Live, **options: Any) -> Any:
    values: dict[str, Any] = {"model": "tiny", "temperature": 0, "echo": True, "logprobs": 3}
    return live.client().completions.create(**{**values, **options})


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_they_are_those_of_transformers(
    live: Live, package: Package, theirs: Any, max_tokens: int
) -> None:
    """As lm-evaluation-harness asks: ids that begin with the token that every text begins with."""
    tokenizer = package.load_tokenizer()
    bos = package.bos_token_id(tokenizer)
    assert bos is not None
    ids = [bos, *tokenizer.encode(TEXT, add_special_tokens=False).ids]
    (choice,) = ask(live, prompt=ids, max_tokens=max_tokens).choices
    found = choice.logprobs
    assert len(found.token_logprobs) == len(ids) + max_tokens
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    wanted = expected(theirs, ids)
    for index, (token, row) in enumerate(zip(ids[1:], wanted, strict=True), start=1):
        assert math.isclose(found.token_logprobs[index], row[token], rel_tol=0, abs_tol=ATOL)
        best = max(found.top_logprobs[index].values())
        assert math.isclose(best, row.max(), rel_tol=0, abs_tol=ATOL)
    assert choice.finish_reason == "length"
    assert choice.text.startswith(f"<bos>{TEXT}")
    assert found.tokens[0] == "<bos>"
    assert found.text_offset[1] == len("<bos>")


def test_of_a_text_all_tokens_have_one_and_their_place(
    live: Live, package: Package, theirs: Any
) -> None:
    tokenizer = package.load_tokenizer()
    answer = ask(live, prompt=TEXT, max_tokens=2, n=2)
    bos = package.bos_token_id(tokenizer)
    assert bos is not None
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    wanted = [row[token] for token, row in zip(ids, expected(theirs, [bos, *ids]), strict=True)]
    for choice in answer.choices:
        found = choice.logprobs
        np.testing.assert_allclose(found.token_logprobs[: len(ids)], wanted, rtol=0, atol=ATOL)
        assert found.text_offset[0] == 0
        assert found.text_offset == sorted(found.text_offset)
        assert found.text_offset[len(ids)] == len(TEXT)
        for token, begin in zip(found.tokens[: len(ids)], found.text_offset, strict=False):
            if "\ufffd" not in token:
                assert choice.text.startswith(token, begin)


@pytest.mark.parametrize("max_tokens", [0, 1, 6])
def test_a_stream_has_those_of_the_whole_answer(live: Live, max_tokens: int) -> None:
    """The prompt comes as one piece once it is read; all pieces together are the answer."""
    wanted = ask(live, prompt=[TEXT, "Who?"], max_tokens=max_tokens).choices
    stream = list(ask(live, prompt=[TEXT, "Who?"], max_tokens=max_tokens, stream=True))
    for index, (text, whole) in enumerate(zip((TEXT, "Who?"), wanted, strict=True)):
        pieces = [one for chunk in stream for one in chunk.choices if one.index == index]
        told = [one for one in pieces if one.logprobs is not None]
        assert told[0] is next(one for one in pieces if one.text)
        assert told[0].text == text
        assert "".join(one.text for one in pieces) == whole.text
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [value for one in told for value in getattr(one.logprobs, name)]
            assert joined == getattr(whole.logprobs, name)
        assert pieces[-1].finish_reason == whole.finish_reason


def test_a_prompt_that_is_held_is_read_again_and_others_go_on(live: Live) -> None:
    """The state has no logits of what it holds; the replies after it are those of any prompt."""
    plain = ask(live, prompt="What is 8", max_tokens=4, echo=False, logprobs=None)
    first = ask(live, prompt="What is 8", max_tokens=4)
    again = ask(live, prompt="What is 8", max_tokens=4)
    assert first.choices[0].logprobs == again.choices[0].logprobs
    assert first.choices[0].text == "What is 8" + plain.choices[0].text
    later = ask(live, prompt="What is 8", max_tokens=4, echo=False, logprobs=None)
    assert later.choices[0].text == plain.choices[0].text


def test_nothing_is_generated_where_nothing_is_wanted(live: Live) -> None:
    answer = ask(live, prompt=["a", "bc"], max_tokens=0, echo=False, logprobs=None)
    assert [choice.text for choice in answer.choices] == ["", ""]
    assert answer.usage.completion_tokens == 0
