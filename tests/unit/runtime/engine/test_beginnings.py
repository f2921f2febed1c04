"""A place of kept beginnings, as a generator asks it."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_compile.runtime.engine.beginnings import End
from gemma4_compile.runtime.engine.generation import Generation, Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
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
        self.states: list[tuple[str, list[int]]] = []
        self.ends: list[str] = []

    def restore(self, prompt: Prompt, shared: int, tenant: str) -> int:
        keys = prompt.keys()
        fitting = [s for whose, s in self.states if whose == tenant and keys[: len(s)] == s]
        longest = max((s for s in fitting if len(s) < len(keys)), key=len, default=[])
        if len(longest) <= shared:
            return shared
        self.engine.held = list(longest)
        return len(longest)

    def keep(self, keys: Sequence[int], end: End, tenant: str) -> None:
        assert keys == self.engine.held
        self.states.append((tenant, list(keys)))
        self.ends.append(end)


def test_a_beginning_that_is_kept_elsewhere_is_restored_for_its_tenant() -> None:
    engine = ScriptedEngine(encode("a b"), prefill_chunk=4)
    kept = Kept(engine)
    generator = Generator(engine, tiny_tokenizer(), frozenset({END_OF_TURN}), beginnings=kept)
    ids = list(range(300, 310))
    first = finished(generator.start(ids, greedy, tenant="x"))
    assert kept.ends == ["chunk", "chunk", "prompt", "reply"]
    assert (first.reused_tokens, kept.states[-1][1]) == (0, [*ids, *first.token_ids])
    for tenant, reused in (("y", 0), ("x", 8)):
        finished(generator.start(PROMPT, greedy, tenant=tenant))  # the state forgets
        assert finished(generator.start(ids[:9], greedy, tenant=tenant)).reused_tokens == reused
        assert engine.held[:9] == ids[:9]


def test_a_client_learns_what_was_held_of_its_own_prompt_alone() -> None:
    generator = scripted_generator(ScriptedEngine(encode("a")))

    def reused(client: str) -> int:
        return finished(generator.start(PROMPT, greedy, client=client)).reused_tokens

    assert [reused(client) for client in "aabba"] == [0, len(PROMPT) - 1, 0, len(PROMPT) - 1, 0]
