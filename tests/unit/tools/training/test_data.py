from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from tokenizers import Tokenizer

from gemma4_compile.tiny import checkpoint
from tools.training.tiny.data import Corpus, answered, batches, make_corpus, of_last_turns
from tools.training.tiny.model import SHIPPED_FILES


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus(SHIPPED_FILES, 300, 1)


def test_only_answers_and_their_ends_are_predicted() -> None:
    tokenizer = Tokenizer.from_buffer(checkpoint.shipped_file("tokenizer.json"))
    text = (
        "<bos><|turn>system\nBe brief.<turn|>\n"
        "<|turn>user\nHi<turn|>\n<|turn>model\nHello!<turn|>\n"
        "<|turn>user\nmodel<turn|>\n<|turn>model\nyes<turn|>\n"
    )
    ids = np.array([[*tokenizer.encode(text, add_special_tokens=False).ids, 0, 0]])
    wanted = answered(ids, tokenizer.token_to_id("model"))
    for chosen, expected in (
        (ids[wanted], "Hello!<turn|>yes<turn|>"),
        (ids[of_last_turns(ids, wanted)], "yes<turn|>"),
    ):
        assert tokenizer.decode(chosen.tolist(), skip_special_tokens=False) == expected


def test_the_corpus_does_not_depend_on_the_number_of_workers(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A forked worker waits for ever for the tokenizer's threads, which only the first process has.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    again = make_corpus(SHIPPED_FILES, 300, 2)
    np.testing.assert_array_equal(corpus.ids, again.ids)
    np.testing.assert_array_equal(corpus.begins, again.begins)


def test_an_epoch_holds_every_dialogue_once_in_batches_of_the_wanted_size(corpus: Corpus) -> None:
    budget, seen, rows = 2048, 0, 0
    for batch in batches(corpus, budget, 0):
        assert batch.size <= budget or batch.shape[0] == 1
        assert batch.shape[1] % 16 == 0
        rows += batch.shape[0]
        seen += int((batch != 0).sum())
        if rows == 300:
            break
    assert seen == len(corpus.ids)


def test_a_seed_repeats_the_batches(corpus: Corpus) -> None:
    first, again = (list(islice(batches(corpus, 2048, 3), 5)) for _ in range(2))
    assert all((one == other).all() for one, other in zip(first, again, strict=True))
