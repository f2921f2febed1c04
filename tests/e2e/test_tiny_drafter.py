"""The shipped model with the drafter that ships: tokens a step, and the replies without guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gemma4_compile.runtime import Engine, Package
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.grammar.grammar import Grammars, JsonGrammar
from gemma4_compile.runtime.sampling.sampling import SamplingOptions, TokenChooser, make_sampler
from tests.web.compiled import DRAFTED, Compiler
from tools.training.tiny.evaluate import Task, tasks
from tools.training.tiny.further import all_evaluation_dialogues

pytestmark = pytest.mark.slow  # `test_drafts.py` has smaller models

DRAFTS = 4
LEAST_TOKENS_A_STEP = 2.5
MOST_TOKENS = 60
GREEDY = SamplingOptions(temperature=0.0)
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 40}, "number": {"type": "integer"}},
    "required": ["answer", "number"],
    "additionalProperties": False,
}


@dataclass
class Replies:
    """Replies of one engine."""

    generator: Generator
    grammar: JsonGrammar | None = None

    def __call__(self, task: Task, options: SamplingOptions = GREEDY, seed: int = 1) -> list[int]:
        """Token ids of the reply; those of an answer that ends have no stop token."""
        chooser: TokenChooser = make_sampler(options, seed)
        if self.grammar is not None:
            chooser = self.grammar.constrain(chooser)
        generation = self.generator.start(task.prompt, chooser, max_tokens=MOST_TOKENS, plain=True)
        for _ in generation:
            pass
        return generation.token_ids


@dataclass(frozen=True)
class Pair:
    """A package without guesses, and with DRAFTS in every step; held-out questions for it.

    There are `of_a_kind` questions of every kind, one after the other.
    """

    package: Package
    plain: Replies
    drafted: Replies
    questions: Sequence[Task]
    of_a_kind: int

    def some(self, begin: int, step: int) -> Sequence[Task]:
        """Questions of every `step`-th kind."""
        return self.questions[begin :: step * self.of_a_kind]

    def check(
        self, questions: Sequence[Task], options: SamplingOptions = GREEDY, seed: int = 1
    ) -> None:
        """Hold the replies with guesses against those without; some guesses came true."""
        before = self.drafted.generator.drafting.accepted
        for question in questions:
            expected = self.plain(question, options, seed)
            assert self.drafted(question, options, seed) == expected, question.text
        assert self.drafted.generator.drafting.accepted > before + len(questions)


COUNT = 4  # held-out dialogues of every kind


@pytest.fixture(scope="module")
def pair(compiled: Compiler) -> Pair:
    package = Package.open(compiled(DRAFTED, "cpu", "q4f16"))
    tokenizer = package.load_tokenizer()
    plain, drafted = (
        Replies(Generator(Engine(package, drafts=drafts), tokenizer, package.stop_token_ids))
        for drafts in (0, DRAFTS)
    )
    questions = tasks(all_evaluation_dialogues(COUNT, seed=7), tokenizer)
    return Pair(package, plain, drafted, questions, COUNT)


def test_held_out_dialogues_take_few_steps(pair: Pair) -> None:
    before = replace(pair.drafted.generator.drafting)
    right = 0
    for question in pair.questions:
        right += pair.drafted(question) == question.answer[:-1]
    found = pair.drafted.generator.drafting.since(before)
    assert found.tokens_per_step >= LEAST_TOKENS_A_STEP, found
    assert right >= 0.9 * len(pair.questions), "as without guesses"


def test_greedy_replies_are_those_without_guesses(pair: Pair) -> None:
    pair.check(pair.some(0, 4))


def test_a_seed_gives_the_reply_without_guesses(pair: Pair) -> None:
    own = pair.package.sampling_defaults()
    for seed, options in enumerate((own, SamplingOptions(temperature=1.3, top_p=0.98))):
        pair.check(pair.some(seed, 13), options, seed)


def test_penalties_count_what_was_said_alone(pair: Pair) -> None:
    options = SamplingOptions(
        temperature=0.5, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2
    )
    pair.check(pair.some(2, 13), options, 5)


def test_a_schema_is_followed_with_guesses_as_without(pair: Pair) -> None:
    package = pair.package
    grammars = Grammars(
        package.load_tokenizer(), package.chat_config.vocab_size, sorted(package.stop_token_ids)
    )
    plain, drafted = (
        Replies(one.generator, grammars.compile(SCHEMA)) for one in (pair.plain, pair.drafted)
    )
    schema = replace(pair, plain=plain, drafted=drafted)
    schema.check(pair.some(1, 39))
    schema.check(pair.some(2, 39), SamplingOptions(temperature=0.4), 3)


def test_whole_dialogues_on_one_state(pair: Pair) -> None:
    """Several turns: what a reply took back is nowhere in the next."""
    tokenizer = pair.package.load_tokenizer()
    long = [one for one in all_evaluation_dialogues(12, seed=9) if len(one.turns) > 2]
    assert len(long) > 10
    for dialogue in long[:10]:
        for count in range(1, len(dialogue.turns) + 1):
            (task, *_) = tasks([replace(dialogue, turns=dialogue.turns[:count])], tokenizer)
            assert pair.drafted(task) == pair.plain(task), task.text


def test_the_package_is_the_model_s_and_the_drafter_s(pair: Pair) -> None:
    names = {path.name for path in Path(pair.package.directory).iterdir()}
    assert {"drafter-tensor-cache.json", "params_shard_drafter_0.bin"} <= names
    assert pair.drafted.generator.pace is not None
    assert pair.plain.generator.pace is None
