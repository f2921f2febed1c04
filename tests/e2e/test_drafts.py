"""Replies with guesses ahead: the same tokens as without, whatever is guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from unittest.mock import Mock

import numpy as np
import pytest

from gemma4_compile.errors import ArtifactError, UsageError
from gemma4_compile.runtime import Engine, Package, cli
from gemma4_compile.runtime.check.bench import measure, table
from gemma4_compile.runtime.engine.device_sampling import DeviceSampling
from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, candidates
from gemma4_compile.runtime.server.answers import usage
from tests import hf, models
from tests.drafted import CONTEXT, GREEDY, Drafted, Replies, drafted_package, knows, let_guess
from tests.hf import Float32Array
from tests.marks import slow_unless

# Of the others tests/parity/test_drafted_replies.py holds replies with guesses to transformers'.
KINDS = slow_unless(lambda kind: kind == "e2b", ["e2b", "moe"])


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Drafted]:
    return cache(lambda kind: drafted_package(tmp_path_factory, kind))


@pytest.fixture(scope="module")
def engines(drafted: Callable[[str], Drafted]) -> Callable[[str], tuple[Engine, Engine]]:
    """Engines of a kind's package: without guesses, and with them."""

    def make(kind: str) -> tuple[Engine, Engine]:
        package = Package.open(drafted(kind).package)
        return Engine(package, drafts=0), Engine(package)

    return cache(make)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_replies_are_the_same_with_every_number_of_guesses(
    kind: str,
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, engine = engines(kind)
    without = Replies(plain, drafted(kind))
    prompt = models.prompt(30, seed=1).tolist()
    first = without.reply(prompt, count=90)
    again = [*prompt, *first, *models.prompt(20, seed=2).tolist()]
    second = without.reply(again, count=90)
    # Back to a point that rings still hold or do not: the state is rewound or read anew.
    third = without.reply(again[:-5], count=30)
    for drafts in (1, 2, 5, 8):
        replies = Replies(engine, drafted(kind), drafts)
        for text, reply in ((prompt, first), (again, second), (again[:-5], third)):
            let_guess(monkeypatch, engine, knows([*text, *reply], 0.2, drafts))
            assert replies.reply(text, count=len(reply)) == reply, f"{drafts} guesses"
            assert engine.length == len(text) + len(reply) - 1
        counts = replies.generator.drafting
        assert counts.accepted > counts.steps / 2, "guesses came true"
        assert counts.accepted < counts.guessed, "and some did not"


@pytest.mark.parametrize("kind", KINDS)
def test_replies_are_the_same_with_the_drafter_s_own_guesses(
    kind: str, engines: Callable[[str], tuple[Engine, Engine]], drafted: Callable[[str], Drafted]
) -> None:
    plain, engine = engines(kind)
    prompt = models.prompt(40, seed=4).tolist()
    expected = Replies(plain, drafted(kind)).reply(prompt, count=60)
    for drafts in (None, 4):
        replies = Replies(engine, drafted(kind), drafts)
        assert replies.reply(prompt, count=60) == expected
        assert replies.generator.drafting.guessed > 0


OPTIONS = {
    "temperature": SamplingOptions(temperature=1.5),
    "top_k": SamplingOptions(temperature=1.2, top_k=20),
    "top_p": SamplingOptions(temperature=1.2, top_p=0.8),
    "penalties": SamplingOptions(
        temperature=0.9, min_p=0.02, repetition_penalty=1.3, frequency_penalty=0.4
    ),
}


@pytest.mark.parametrize("name", slow_unless(lambda name: name == "penalties", OPTIONS))
def test_a_seed_gives_the_same_reply_with_guesses(
    name: str,
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, engine = engines("e2b")
    prompt = models.prompt(25, seed=6).tolist()
    for seed in range(3):
        options = OPTIONS[name]
        expected = Replies(plain, drafted("e2b")).reply(prompt, options, seed, count=80)
        let_guess(monkeypatch, engine, knows([*prompt, *expected], 0.25, seed))
        replies = Replies(engine, drafted("e2b"), 4)
        assert replies.reply(prompt, options, seed, count=80) == expected
        assert replies.generator.drafting.accepted > 40


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greedy", "temperature", "top_p"])
def test_rounds_that_draw_on_the_device_give_the_replies_without_guesses(
    name: str,
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on CUDA: rows are drawn at once, and random numbers of rows that go unused are kept."""
    monkeypatch.setattr(DeviceSampling, "is_faster", True)
    plain, engine = engines("e2b")
    prompt = models.prompt(25, seed=17).tolist()
    options = OPTIONS.get(name, GREEDY)
    never = Mock(side_effect=AssertionError("it brings logits to the host"))
    monkeypatch.setattr(engine.rounds, "advance", never)
    # Of seed 2 a number lies 6e-7 from the border of two tokens: which one it draws hangs on the
    # kernels that the clock chooses.
    for seed in (0, 1, 3):
        expected = Replies(plain, drafted("e2b")).reply(prompt, options, seed, count=80)
        for drafts in (None, 1, 4, 8):
            with monkeypatch.context() as patched:
                let_guess(patched, engine, knows([*prompt, *expected], 0.25, seed))
                replies = Replies(engine, drafted("e2b"), drafts)
                assert replies.reply(prompt, options, seed, count=80) == expected
                assert replies.generator.drafting.accepted > 10 or drafts is None
                assert engine.length == len(prompt) + len(expected) - 1


@pytest.mark.slow
def test_tokens_have_the_model_s_own_distribution(
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chi-square of 10,000 draws: each drawn token's place in transformers' distribution."""
    made, (_, engine) = drafted("unified"), engines("unified")
    model = hf.load(made.target.text_config, made.target.weights, "float32")
    options = SamplingOptions(temperature=2.0, top_k=20, top_p=0.95)
    # Guesses of what follows a token without what stands before it: some come true.
    pairs = np.stack([np.full(256, 2), np.arange(256)], axis=1)
    likely = hf.last_logits(model, pairs).argmax(axis=1)

    def guess(token_id: int, position: int, count: int) -> list[int]:
        found = []
        for _ in range(count):
            token_id = int(likely[token_id])
            found.append(token_id)
        return found

    let_guess(monkeypatch, engine, guess)
    replies = Replies(engine, made, 3)
    rng, places, beyond = np.random.default_rng(11), [], 0
    prompt = models.prompt(6, seed=8).tolist()
    for seed in range(47):
        drawn = replies.reply(prompt, options, seed, count=CONTEXT - len(prompt))
        logits = hf.logits(model, [*prompt, *drawn])[len(prompt) - 1 : -1]
        for token_id, row in zip(drawn, logits, strict=True):
            ids, probabilities = candidates(row, options)
            found = np.flatnonzero(ids == token_id)
            if not len(found):  # at the very end of the top-p set, by a rounding
                beyond += 1
            elif len(ids) > 1:
                before, own = probabilities[: found[0]].sum(), probabilities[found[0]]
                places.append(before + own * rng.random())
    assert len(places) >= 10_000
    assert beyond <= 3
    assert replies.generator.drafting.accepted > 500
    counts = np.bincount((np.array(places) * 20).astype(int).clip(0, 19), minlength=20)
    expected = len(places) / 20
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < 43.8, "the 0.999 quantile of chi-square with 19 degrees of freedom"


def test_a_stop_among_accepted_guesses_leaves_nothing_behind_it(
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, engine = engines("e2b")
    prompt = models.prompt(20, seed=9).tolist()
    expected = Replies(plain, drafted("e2b")).reply(prompt, count=60)
    let_guess(monkeypatch, engine, knows([*prompt, *expected], 0.0))
    replies = Replies(engine, drafted("e2b"), 6)
    for stop in range(20, 32):
        token_id = expected[stop]
        length = expected.index(token_id)
        replies.generator.stop_ids = frozenset({token_id})
        generation = replies.start(prompt)
        for _ in generation:
            pass
        assert generation.finish_reason == "stop"
        assert generation.token_ids == expected[:length]
        assert engine.length == len(prompt) + length
    replies.generator.stop_ids = frozenset()
    assert replies.reply(prompt, count=60) == expected


def read(generation: Generation, count: int) -> Iterator[int]:
    """Events until so many tokens are there."""
    for _ in generation:
        yield 1
        if len(generation.token_ids) >= count:
            return


def test_a_reply_may_be_left_among_accepted_guesses(
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, engine = engines("e2b")
    prompt = models.prompt(20, seed=10).tolist()
    expected = Replies(plain, drafted("e2b")).reply(prompt, count=60)
    let_guess(monkeypatch, engine, knows([*prompt, *expected], 0.0))
    replies = Replies(engine, drafted("e2b"), 5)
    for count in range(1, 14):
        generation = replies.start(prompt)
        list(read(generation, count))
        generation.close()
        assert generation.token_ids == expected[: len(generation.token_ids)]
        assert engine.length == len(prompt) + len(generation.token_ids) - 1
    assert replies.reply(prompt, count=60) == expected


def test_the_context_ends_at_the_same_token(
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, engine = engines("e2b")
    prompt = models.prompt(CONTEXT - 30, seed=12).tolist()
    expected = Replies(plain, drafted("e2b")).reply(prompt)
    assert len(expected) == 31, "the last token needs no room"
    for drafts in (1, 4, 8):
        let_guess(monkeypatch, engine, knows([*prompt, *expected], 0.1, drafts))
        generation = Replies(engine, drafted("e2b"), drafts).start(prompt)
        for _ in generation:
            pass
        assert (generation.token_ids, generation.finish_reason) == (expected, "context")
        assert engine.length == CONTEXT


# e4b's parts are e2b's.
@pytest.mark.parametrize("kind", ["e2b", pytest.param("e4b", marks=pytest.mark.exhaustive)])
def test_rejected_guesses_leave_no_trace_in_the_state(
    kind: str, engines: Callable[[str], tuple[Engine, Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings beyond the window: a token's logits after rejections are those without any."""
    plain, engine = engines(kind)
    rounds = engine.rounds
    assert rounds is not None
    text = models.prompt(150, seed=13).tolist()
    for one in (plain, engine):
        one.clear()
        one.prefill(text[:60])
    rng = np.random.default_rng(14)
    rounds.advance(text[60], 0)
    rounds.accept(0)
    plain.decode(text[60])
    let_guess(monkeypatch, engine, lambda *_: rng.integers(256, size=8).tolist())
    for token_id in text[61:]:
        guesses, rows = rounds.advance(token_id, 8)
        found = rows.read(0)
        rounds.accept(0)
        np.testing.assert_allclose(found, plain.decode(token_id), atol=1e-4)
        assert len(guesses) == 8
    assert engine.length == plain.length == len(text)


def test_numbers_of_guesses_that_cannot_be_are_refused(
    drafted: Callable[[str], Drafted], tmp_path_factory: pytest.TempPathFactory
) -> None:
    package = Package.open(drafted("e2b").package)
    for drafts in (-1, 9):
        with pytest.raises(UsageError, match=f"expected 0 to 8, found {drafts}"):
            Engine(package, drafts=drafts)


def test_a_package_without_its_drafter_s_list_is_damaged(
    drafted: Callable[[str], Drafted], tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = drafted("e2b").package
    folder = tmp_path_factory.mktemp("broken") / "package"
    folder.mkdir()
    for file in made.iterdir():
        if file.name != "drafter-tensor-cache.json":
            (folder / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ArtifactError, match=r"drafter-tensor-cache\.json"):
        Package.open(folder)


class Unlike:
    """A chooser with a memory: the most probable token that it has not chosen lately."""

    def __init__(self) -> None:
        self.chosen: list[int] = []

    def __call__(self, logits: Float32Array) -> int:
        allowed = logits.copy()
        allowed[self.chosen[-7:]] = -np.inf
        self.chosen.append(int(allowed.argmax()))
        return self.chosen[-1]


def test_a_chooser_with_a_memory_hears_of_each_token_once(
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As grammars, penalties and log probabilities are."""
    plain, engine = engines("e2b")
    prompt = models.prompt(20, seed=15).tolist()

    def reply(replies: Replies) -> list[int]:
        chooser = Unlike()
        generation = replies.generator.start(prompt, chooser, max_tokens=60, plain=True)
        for _ in generation:
            pass
        assert chooser.chosen == generation.token_ids
        return generation.token_ids

    expected = reply(Replies(plain, drafted("e2b")))
    assert len(set(expected)) > 7
    let_guess(monkeypatch, engine, knows([*prompt, *expected], 0.3))
    replies = Replies(engine, drafted("e2b"), 5)
    assert reply(replies) == expected
    assert replies.generator.drafting.accepted > 20


def test_counts_are_told_in_usage_and_in_the_table_of_speeds(
    engines: Callable[[str], tuple[Engine, Engine]],
    drafted: Callable[[str], Drafted],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, engine = engines("e2b")
    prompt = models.prompt(20, seed=16).tolist()
    without = Replies(plain, drafted("e2b")).start(prompt, count=41)
    for _ in without:
        pass
    assert "completion_tokens_details" not in usage([without])
    with monkeypatch.context() as patched:
        let_guess(patched, engine, knows([*prompt, *without.token_ids], 0.0))
        generation = Replies(engine, drafted("e2b"), 4).start(prompt, count=41)
        for _ in generation:
            pass
    # One token is the prefill's and one the first round's, which has no guesses; then five a round,
    # of which the last round's last is not asked for.
    details = usage([generation])["completion_tokens_details"]
    assert details == {"accepted_prediction_tokens": 31, "rejected_prediction_tokens": 1}
    assert generation.drafting is not None
    assert generation.drafting.tokens_per_step > 4

    measured = [list(measure(one, one.vocab_size)) for one in (plain, engine)]
    assert "tokens a step" not in table(measured[0])
    assert "tokens a step" in table(measured[1])
    assert all((m.tokens_per_step or 0) >= 1 for m in measured[1])


def test_the_command_line_takes_a_number_of_guesses(
    drafted: Callable[[str], Drafted], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(drafted("e2b").package), "--raw", "--prompt", "a b", "--greedy", "--max-tokens"]
    said = {}
    for drafts in ("0", "3"):
        assert cli.main([*asked, "20", "--draft", drafts]) == 0
        said[drafts] = capsys.readouterr()
    assert said["0"].out == said["3"].out
    assert "tokens a step" in said["3"].err
    assert "tokens a step" not in said["0"].err
    assert cli.main([*asked, "20", "--draft", "9"]) == 2
    assert "--draft: expected 0 to 8, found 9" in capsys.readouterr().err
