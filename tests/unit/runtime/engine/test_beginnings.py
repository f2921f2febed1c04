"""A place of kept beginnings, as a generator asks it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_compile.runtime.engine.beginnings import Restored, beginning
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.reply.reply import TextDelta
from tests.scripted_engine import (
    END_OF_TURN,
    ScriptedEngine,
    encode,
    greedy,
    scripted_generator,
    tiny_tokenizer,
)

PROMPT = encode("one two three four")


def finished(generation: Generation) -> Generation:
    list(generation)
    return generation


class Kept:
    """Keeps the beginnings of one engine by copying its ids."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine = engine
        self.states: list[tuple[list[int], Hashable]] = []
        self.ends: list[str] = []
        self.placed: list[int] = []
        self.cuts: list[int] = []

    def places(self, prompt: Prompt, begin: int, turn_ends: Collection[int]) -> Sequence[int]:
        assert END_OF_TURN in turn_ends
        return [cut for cut in self.cuts if begin < cut < len(prompt)]

    def restore(self, prompt: Prompt, shared: int, placed: int) -> Restored | None:
        keys = prompt.keys()
        assert shared in (0, placed)
        self.placed.append(placed)
        fitting = [one for one in self.states if keys[: len(one[0])] == one[0]]
        shorter = (one for one in fitting if shared < len(one[0]) < len(keys))
        longest, owner = max(shorter, key=lambda one: len(one[0]), default=([], None))
        if not longest:
            return None
        self.engine.held = prompt.ids[: len(longest)]
        return Restored(len(longest), owner)

    def keep(self, keys: Sequence[int], rest: int, owner: Hashable) -> None:
        assert keys[1:] == self.engine.held[1:]  # the first one is the tenant's own
        self.states.append((list(keys), owner))
        self.ends.append(f"{rest} to come")

    def leave(
        self, keys: Sequence[int], shared: int, owner: Hashable, *, later: bool = False
    ) -> None:
        assert later  # only a prompt takes the place of another here
        assert keys[1:] == self.engine.held[1:]
        assert shared < len(keys)
        self.states.append((list(keys), owner))
        self.ends.append(f"{shared} of {len(keys)}")


def test_a_beginning_that_is_kept_elsewhere_is_restored() -> None:
    engine = ScriptedEngine(encode("a b"), prefill_chunk=4)
    kept = Kept(engine)
    generator = Generator(engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=kept)
    ids = list(range(300, 310))
    first = finished(generator.start(ids, greedy))
    assert kept.ends == ["6 to come", "2 to come", "0 to come"]
    held = [*ids, *first.token_ids]
    finished(generator.start([*ids[:5], 7], greedy))
    assert first.reused_tokens == 0
    assert (kept.ends[3], kept.states[3]) == (f"5 of {len(held)}", (held, None))
    finished(generator.start(PROMPT, greedy))  # the state forgets
    assert finished(generator.start(ids[:9], greedy)).reused_tokens == 8
    assert engine.held[:9] == ids[:9]


def test_chunks_end_where_a_state_is_to_be_kept() -> None:
    engine = ScriptedEngine(encode("a"), prefill_chunk=4)
    kept = Kept(engine)
    kept.cuts = [2, 5]
    generator = Generator(engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=kept)
    finished(generator.start(list(range(300, 310)), greedy))
    assert [len(keys) for keys, _ in kept.states] == [2, 5, 9, 10]
    kept.states.clear()
    finished(generator.start([*range(300, 303), *range(500, 507)], greedy))
    assert [len(keys) for keys, _ in kept.states[1:]] == [5, 9, 10]  # the first one was left
    assert kept.placed == [0, 3]


def test_of_a_reply_in_other_words_nothing_is_kept() -> None:
    engine = ScriptedEngine(encode("a b c"))
    kept = Kept(engine)
    generator = Generator(engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=kept)
    first = finished(generator.start(PROMPT, greedy))
    longer = [*PROMPT, *first.token_ids[:2], 400, 401]
    assert finished(generator.start(longer, greedy)).reused_tokens == len(PROMPT) + 2
    assert kept.ends == ["0 to come"] * 2
    shared = len(longer) - 1  # the same prompt: its reply may be gone back to
    assert finished(generator.start(longer, greedy)).reused_tokens == shared
    assert kept.ends[2:] == [f"{shared} of {len(longer) + 3}", "0 to come"]
    finished(generator.start([*longer[:4], 7], greedy))
    assert kept.ends[4:] == [f"4 of {len(longer) + 3}", "0 to come"]


@pytest.mark.parametrize("reply", ["a b c", ""])
def test_the_prompts_end_is_kept_once_the_reader_has_a_token(reply: str) -> None:
    engine = ScriptedEngine(encode(reply), prefill_chunk=4)
    kept = Kept(engine)
    generator = Generator(engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=kept)
    ends = [
        list(kept.ends)
        for event in generator.start(list(range(300, 310)), greedy, plain=True)
        if isinstance(event, TextDelta)
    ]
    chunks, end = ["6 to come", "2 to come"], ["0 to come"]
    assert ends[:1] == [chunks] * bool(reply)
    assert all(later == chunks + end for later in ends[1:])
    assert kept.ends == chunks + end


def test_a_client_learns_what_was_held_of_its_own_prompt_alone() -> None:
    generator = scripted_generator(ScriptedEngine(encode("a")))

    def reused(client: str) -> int:
        return finished(generator.start(PROMPT, greedy, client=client)).reused_tokens

    assert [reused(client) for client in "aabba"] == [0, len(PROMPT) - 1, 0, len(PROMPT) - 1, 0]


def test_a_client_learns_what_was_kept_of_its_own_prompts_alone() -> None:
    engine = ScriptedEngine(encode("a"), prefill_chunk=4)
    generator = Generator(
        engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=Kept(engine)
    )

    def reused(ids: list[int], client: str) -> int:
        return finished(generator.start(ids, greedy, client=client)).reused_tokens

    ids, others = list(range(300, 310)), list(range(400, 410))
    assert [reused(ids, "a"), reused(others, "b")] == [0, 0]
    assert [reused(ids, "a"), reused(others, "a")] == [8, 0]
    assert reused(others, "b") == 0  # what the state holds is the other one's now


def test_what_is_held_or_kept_is_no_other_tenants() -> None:
    engine = ScriptedEngine(encode("a"), prefill_chunk=4)
    kept = Kept(engine)
    generator = Generator(engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=kept)

    def reused(ids: list[int], tenant: str) -> int:
        prompt = Prompt(ids, tenant=tenant)
        return finished(generator.start(prompt, greedy)).reused_tokens

    ids, others = list(range(300, 310)), list(range(400, 410))
    assert [reused(ids, "x"), reused(ids, "y"), reused(ids, "y")] == [0, 0, 9]
    assert [reused(others, "y"), reused(ids, "x"), reused(ids, "")] == [0, 8, 0]


def test_of_a_state_that_is_not_known_nothing_is_kept() -> None:
    engine = ScriptedEngine(encode("a b c"))
    kept = Kept(engine)
    generator = Generator(engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=kept)
    finished(generator.start(PROMPT, greedy))
    before = list(kept.ends)
    engine.held.append(7)  # as of a call that was interrupted
    generator.leave(0)
    assert finished(generator.start(PROMPT, greedy)).reused_tokens == 0
    assert kept.ends == [*before, *before[-1:]]


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_how_much_two_begin_with_alike(shared: list[int], one: list[int], other: list[int]) -> None:
    first, second = shared * 30 + one, shared * 30 + other
    pairs = [left == right for left, right in zip(first, second, strict=False)]
    count = pairs.index(False) if False in pairs else len(pairs)
    assert beginning(first, second) == beginning(second, first) == count
