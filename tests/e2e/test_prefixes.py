"""Beginnings that are kept, on a compiled engine: what goes on from one is what never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kept_prefix import measured
from gemma4_compile.runtime import Engine
from gemma4_compile.runtime.chat.chat import Chat
from gemma4_compile.runtime.engine.generation import Generator
from gemma4_compile.runtime.engine.media_prompt import Prompt
from gemma4_compile.runtime.engine.sequence import Sequence as EngineSequence
from gemma4_compile.runtime.engine.sequence_engine import EngineSequences, SequenceEngine
from gemma4_compile.runtime.engine.slots import Slots
from gemma4_compile.runtime.engine.token_engine import TokenEngine
from gemma4_compile.runtime.package.package import Package, read_provenance
from gemma4_compile.runtime.prefixes.kept import KeptPrefixes, PrefixCache, kept_prefixes
from gemma4_compile.runtime.prefixes.prefix_folder import forget
from gemma4_compile.runtime.prefixes.saved_rows import SLACK, restore, save
from gemma4_compile.runtime.prefixes.shelf import HostShelf
from gemma4_compile.runtime.sampling.sampling import Float32Array
from tests.scripted_engine import greedy, tiny_tokenizer
from tests.several_sequences import emptied

RINGS = 64
"""Rows of the package's sliding layers: later positions overwrite."""


@pytest.fixture(scope="module")
def engine(tiny_package: Path) -> Engine:
    return Engine.open(tiny_package, sequences=2)


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(107, 1000, count).tolist()


def in_chunks(engine: Engine, ids: Sequence[int], begin: int = 0) -> Float32Array:
    """Prefill a chunk at a time, chunks beginning where they would from the start."""
    size = engine.prefill_chunk
    while begin < len(ids):
        end = min(len(ids), begin - begin % size + size)
        logits = engine.prefill(ids[begin:end])
        begin = end
    return logits


@pytest.mark.parametrize("chunks", [1, 2, 6])
def test_logits_after_a_prefix_are_those_of_a_fresh_prefill(engine: Engine, chunks: int) -> None:
    """Exactly: to copy rows changes none, before the rings have wrapped and after."""
    entries, _ = engine.sequence.row_entries()
    held = chunks * engine.prefill_chunk
    ids = ids_of(held + engine.prefill_chunk + 7, chunks)
    engine.clear()
    in_chunks(engine, ids[:held])
    saved = save(engine.sequence, entries, engine.device, None, None)
    expected = in_chunks(engine, ids, held)
    engine.clear()
    engine.prefill(ids_of(RINGS + 9, 0))  # what another one leaves behind
    restore(engine.sequence, saved, held, engine.device)
    np.testing.assert_array_equal(in_chunks(engine, ids, held), expected)


def test_a_prefix_goes_on_from_another_ones_rows(engine: Engine) -> None:
    """Rows that a shorter one has are not copied again, and the rings are each one's own."""
    entries, _ = engine.sequence.row_entries()
    first, second = 2 * engine.prefill_chunk, 5 * engine.prefill_chunk
    ids = ids_of(second + 9, 3)
    engine.clear()
    in_chunks(engine, ids[:first])
    short = save(engine.sequence, entries, engine.device, None, None)
    in_chunks(engine, ids[:second], first)
    long = save(engine.sequence, entries, engine.device, short, None)
    whole = save(engine.sequence, entries, engine.device, None, None)
    assert long.blocks[0] is short.blocks[0]
    assert sum(part.nbytes for part in long.parts) == sum(part.nbytes for part in whole.parts)
    expected = in_chunks(engine, ids, second)
    for saved, held in ((short, first), (long, second)):
        restore(engine.sequence, saved, held, engine.device)
        np.testing.assert_array_equal(in_chunks(engine, ids, held), expected)


def test_tokens_of_a_prefix_are_taken_back(engine: Engine) -> None:
    entries, _ = engine.sequence.row_entries()
    ids = ids_of(RINGS * 3, 4)
    engine.clear()
    in_chunks(engine, ids)
    saved = save(engine.sequence, entries, engine.device, None, None)
    back = len(ids) - saved.shortest
    assert 0 < back <= SLACK
    assert engine.pop(back)
    expected = engine.decode(77)
    restore(engine.sequence, saved, saved.shortest, engine.device)
    np.testing.assert_array_equal(engine.decode(77), expected)
    restore(engine.sequence, saved, len(ids), engine.device)
    assert not engine.pop(back + 1)


@pytest.mark.parametrize("held", [20, 3 * RINGS])
def test_a_prompts_end_is_kept_although_a_token_was_begun_ahead(engine: Engine, held: int) -> None:
    entries, _ = engine.sequence.row_entries()
    ids = ids_of(held, 5)
    engine.clear()
    in_chunks(engine, ids)
    engine.decode(78)
    saved = save(engine.sequence, entries, engine.device, None, None, held)
    assert engine.pop(1)
    expected = engine.decode(77)
    restore(engine.sequence, saved, held, engine.device)
    assert engine.length == held
    np.testing.assert_array_equal(engine.decode(77), expected)


def row_bytes(engine: Engine) -> tuple[int, int]:
    """Bytes of a token's rows: of full layers, and of rings."""
    entries, dtype = engine.sequence.row_entries()
    value = 2 * np.dtype(dtype).itemsize  # of keys, and of values
    full = sum(x.heads * x.head_dim for x in entries if x.window == 0)
    rings = sum(x.heads * x.head_dim for x in entries if x.window)
    return value * full, value * rings


@dataclass
class Slot:
    sequence: EngineSequence


class Talk:
    """A generator of a sequence that keeps beginnings; it answers with one token."""

    def __init__(
        self, engine: Engine, budget: int = 2**24, cache: PrefixCache | None = None
    ) -> None:
        kept = kept_prefixes(engine, budget, cache)
        assert kept is not None, "this library can copy rows"
        self.kept: KeptPrefixes = kept
        tokenizer = tiny_tokenizer()
        engine.clear()
        self.generator = Generator(engine, tokenizer, frozenset(), beginnings=kept.of(engine))

    def ask(self, ids: Sequence[int], tenant: str = "", client: str = "") -> tuple[int, list[int]]:
        """How many tokens of the prompt are said to have been reused, and the reply."""
        prompt = Prompt(list(ids), tenant=tenant)
        reply = self.generator.start(prompt, greedy, max_tokens=3, client=client)
        list(reply)
        return reply.reused_tokens, reply.token_ids


def test_a_branch_in_the_middle_of_a_conversation_is_found_again(engine: Engine) -> None:
    talk = Talk(engine)
    chunk = engine.prefill_chunk
    ids = ids_of(7 * chunk, 5)
    other = ids_of(3 * chunk, 6)
    branch = [*ids[: 6 * chunk], *ids_of(chunk, 7)]
    assert talk.ask(ids)[0] == 0
    talk.ask(other)
    kept, reply = talk.ask(branch)
    assert kept >= 4 * chunk
    fresh = Talk(engine)
    assert fresh.ask(branch) == (0, reply)
    kept, again = talk.ask(ids)
    assert kept == len(ids) - 1
    talk.ask(other)
    assert talk.ask(ids) == (kept, again)
    assert talk.kept.restored_tokens >= 10 * chunk


def test_the_second_prompt_goes_on_exactly_where_it_parts_from_the_first(engine: Engine) -> None:
    """Between two places that are kept: rows of both are those of the chunks that were read."""
    talk = Talk(engine)
    ids, chunk = ids_of(185, 19), engine.prefill_chunk
    talk.ask(ids)
    ends = {state.length for n in range(186) if (state := talk.kept.memory.at(ids[:n]))}
    parting = max(ends - {185}) + chunk // 2
    branch = [*ids[:parting], *ids_of(9, 20)]
    found = talk.kept.memory.find(branch)
    assert found is not None
    assert found.before is not None, "or one of them has all"
    engine.clear()
    in_chunks(engine, ids[: parting - parting % chunk + chunk])
    assert engine.pop(engine.length - parting)
    expected = engine.prefill(branch[parting:])
    engine.clear()
    engine.prefill(ids_of(RINGS + 9, 0))  # what another one leaves behind
    assert talk.generator.rewind(branch) == parting
    np.testing.assert_array_equal(engine.prefill(branch[parting:]), expected)
    assert Talk(engine).ask(branch)[1] == talk.ask(branch)[1]


def test_rows_of_full_layers_come_from_a_slot_that_has_them(engine: Engine) -> None:
    """Its rings have gone on with its reply; only what was kept of them is copied to the device."""
    kept = kept_prefixes(emptied(engine), 2**24)
    assert kept is not None
    prefixes: KeptPrefixes = kept

    def make(one: TokenEngine) -> Generator:
        assert isinstance(one, SequenceEngine)
        return Generator(one, tiny_tokenizer(), frozenset(), beginnings=prefixes.of(one))

    slots = Slots(EngineSequences(engine), make, prefixes.counts, HostShelf(prefixes))
    ids = ids_of(150, 21)
    branch = [*ids[:140], *ids_of(9, 22)]
    busy = slots.take(ids)
    list(busy.generator.start(ids, lambda _: 110, max_tokens=RINGS + 5))
    full, rings = row_bytes(engine)
    logits = []
    for copies in (True, False):
        slot = slots.take(branch)
        assert slot is not busy
        before = prefixes.counts()
        assert slots.fork(slot, branch) is copies
        assert slot.shared(branch) == 140 * copies
        assert slot.generator.rewind(branch) == 140
        after = prefixes.counts()
        copied = after.copied_bytes - before.copied_bytes - (0 if copies else 150 * full)
        assert 31 * rings <= copied <= RINGS * rings
        assert after.placed_tokens - before.placed_tokens == 140 * copies
        logits.append(slot.generator.prefill(Prompt(branch[140:])))
        assert prefixes.counts().saved == after.saved, "what another slot holds is its own to keep"
        slot.generator.clear()
        busy.generator.clear()  # so that the second time there is none
        slot.is_free = True
    np.testing.assert_array_equal(logits[0], logits[1])
    emptied(engine)


def test_what_is_kept_is_of_one_tenant_and_told_to_its_owner(engine: Engine) -> None:
    talk = Talk(engine)
    ids, other = ids_of(90, 8), ids_of(90, 9)
    talk.ask(ids, "a", "one")
    talk.ask(other, "a", "one")
    assert talk.ask(ids, "b", "one")[0] == 0
    restored = talk.kept.restored_tokens
    talk.ask(other, "a", "two")
    assert talk.kept.restored_tokens > restored
    assert talk.ask(ids, "a", "two")[0] == 0  # restored, and not told
    talk.ask(other, "a", "two")
    assert talk.ask(ids, "a", "one")[0] == len(ids) - 1


def test_the_budget_is_never_exceeded(engine: Engine) -> None:
    alone = Talk(engine)
    alone.ask(ids_of(120, 10))
    one = alone.kept.memory.nbytes
    talk = Talk(engine, budget=2 * one + one // 2)
    for seed in range(10, 16):
        talk.ask(ids_of(120, seed))
        assert talk.kept.memory.nbytes <= talk.kept.memory.budget
    assert talk.ask(ids_of(120, 14))[0] == 119
    assert talk.ask(ids_of(120, 10))[0] == 0
    nothing = Talk(engine, budget=one // 50)
    for _ in range(2):
        nothing.ask(ids_of(120, 10))
        assert nothing.ask(ids_of(120, 11))[0] == 0
    assert nothing.kept.memory.nbytes == 0


def test_sequences_share_what_is_kept(engine: Engine) -> None:
    talk = Talk(engine)
    ids = ids_of(100, 17)
    talk.ask(ids)
    engine.clear()
    in_chunks(engine, ids)
    expected = engine.decode(9)
    other = engine.sequences.add()
    try:
        restored = talk.kept.of(Slot(other)).restore(Prompt([*ids, 9]), 0, 0)
        assert restored is not None
        engine.prefill(ids[restored.length :], other)
        found = engine.decode(9, other)
    finally:
        engine.sequences.remove(other)
    assert restored.length > 50
    np.testing.assert_array_equal(found, expected)


def test_a_later_process_goes_on_from_files(engine: Engine, tmp_path: Path) -> None:
    ids = ids_of(6 * engine.prefill_chunk, 18)
    cache = PrefixCache(tmp_path / "kept", "tiny")
    first = Talk(engine, cache=cache)
    _, reply = first.ask(ids)
    first.kept.close()
    second = Talk(engine, cache=cache)
    assert second.ask(ids) == (0, reply)  # they are nobody's, so nobody is told
    assert second.kept.restored_tokens >= len(ids) - engine.prefill_chunk
    second.kept.close()
    other = Talk(engine, cache=PrefixCache(cache.path, "another"))
    assert other.ask(ids) == (0, reply)
    assert other.kept.restored_tokens == 0
    other.kept.close()


def test_a_document_is_not_read_again_after_a_chat_was_cleared(
    engine: Engine, tiny_package: Path
) -> None:
    chat = Chat(engine, Package.open(tiny_package), prefix_memory=2**24)
    document = "One two three four five six seven eight nine ten. " * 8
    replies = []
    for question in ("Hello there, my friend.", "And then?"):
        chat.clear()
        list(chat.events(document + question, greedy, max_tokens=2))
        assert chat.last_reply is not None
        replies.append(chat.last_reply)
    assert replies[0].reused_tokens == 0
    assert replies[1].reused_tokens > replies[1].prompt_tokens // 2


def test_a_chat_goes_on_from_what_one_before_it_kept(
    engine: Engine, tiny_package: Path, tmp_path: Path
) -> None:
    package = Package.open(tiny_package)
    cache = PrefixCache.of(tmp_path / "kept", read_provenance(tiny_package), package.library_name)
    system = "One two three four five six seven eight nine ten. " * 8
    replies = []
    for question in ("Hello there, my friend.", "And then?"):
        chat = Chat(engine, package, system=system, prefix_memory=2**24, prefix_cache=cache)
        list(chat.events(question, greedy, max_tokens=2))
        chat.close()
        assert chat.last_reply is not None
        replies.append(chat.last_reply)
    assert replies[0].reused_tokens == 0
    assert replies[1].reused_tokens > replies[1].prompt_tokens // 2
    assert forget(cache.path) > 0
    assert not cache.path.exists()


def test_a_chat_goes_on_behind_the_last_reply_of_one_before_it(
    engine: Engine, tiny_package: Path, tmp_path: Path
) -> None:
    """What the conversation was left with is kept, and `/load` goes on from there."""
    package = Package.open(tiny_package)
    cache = PrefixCache.of(tmp_path / "kept", read_provenance(tiny_package), package.library_name)
    count = engine.prefill_chunk + 8  # fewer are read again sooner than kept

    def never_ending(_: Float32Array) -> int:
        return 110

    before = Chat(engine, package, prefix_memory=2**24, prefix_cache=cache)
    list(before.events("Hello there, my friend.", never_ending, max_tokens=count))
    before.close()
    assert before.last_reply is not None
    assert len(before.last_reply.token_ids) == count
    after = Chat(engine, package, prefix_memory=2**24, prefix_cache=cache)
    after.restore(before.messages)
    list(after.events("And then?", greedy, max_tokens=2))
    after.close()
    assert after.last_reply is not None
    # The last token is not in the state that was left: nobody has asked for one after it.
    assert after.last_reply.reused_tokens == before.last_reply.prompt_tokens + count - 1


def test_the_benchmark_counts_what_is_read_and_copied(engine: Engine) -> None:
    """Of 180 tokens with 160 kept 20 are read; a slot that has the full layers' rows gets rings."""
    found = measured(emptied(engine), tokens=180, own=20, memory=2**24, repeats=1)
    full, rings = row_bytes(engine)
    most_rings = 2 * RINGS * rings  # where the ends of two prefixes are near
    for one in found["host"]["kept"]:
        assert (one["read"], one["slot_tokens"]) == (20, 0)
        assert 160 * full <= one["copied_bytes"] <= 180 * full + most_rings
    for one in found["slot"]["kept"]:
        assert (one["read"], one["slot_tokens"]) == (20, 160)
        assert 31 * rings <= one["copied_bytes"] <= most_rings
    emptied(engine)
