"""Generation on a scripted engine; tests/e2e/test_chat.py has the same on a compiled one."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime import ContextFullError
from gemma4_compile.runtime.generation import Generation, PromptProgress
from gemma4_compile.runtime.reply import TextDelta
from tests.scripted_engine import ScriptedEngine, encode, greedy, scripted_generator

PROMPT = encode("one two three four five six seven eight nine ten eleven twelve thirteen")


def finished(generation: Generation) -> Generation:
    list(generation)
    return generation


def test_the_prompt_runs_in_chunks_that_are_told() -> None:
    engine = ScriptedEngine(encode("yes"))
    events = list(scripted_generator(engine).start(PROMPT, greedy))
    progress = [event for event in events if isinstance(event, PromptProgress)]
    assert [event.done for event in progress] == [*range(16, len(PROMPT), 16), len(PROMPT)]
    assert {event.total for event in progress} == {len(PROMPT)}
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "yes"


def test_parts_are_gathered_and_time_is_taken() -> None:
    reply = '<|channel>thought\nhm\n<channel|>so<|tool_call>call:f{a:<|"|>b<|"|>}<tool_call|>'
    engine = ScriptedEngine(encode(reply))
    generation = finished(scripted_generator(engine).start(PROMPT, greedy))
    assert (generation.thought, generation.text) == ("hm", "so")
    assert [(call.name, call.arguments) for call in generation.tool_calls] == [("f", {"a": "b"})]
    assert generation.finish_reason == "stop"
    assert generation.token_ids == encode(reply)
    assert generation.first_token_s > 0
    assert generation.decode_tokens_per_s > 0


def test_the_mark_that_asks_for_a_result_ends_a_reply() -> None:
    engine = ScriptedEngine(encode("<|tool_call>call:f{}<tool_call|><|tool_response>more"))
    generation = finished(scripted_generator(engine).start(PROMPT, greedy))
    assert generation.finish_reason == "stop"
    assert len(generation.tool_calls) == 1
    assert generation.text == ""


@pytest.mark.parametrize("chopped", [False, True])
def test_a_stop_text_ends_the_answer_and_no_thought(chopped: bool) -> None:
    answer = "one STOP two"
    ids = [i for letter in answer for i in encode(letter)] if chopped else encode(answer)
    engine = ScriptedEngine(encode("<|channel>thought\na STOP b\n<channel|>") + ids)
    generation = finished(scripted_generator(engine).start(PROMPT, greedy, stop=[" STOP", "x"]))
    assert generation.thought == "a STOP b"
    assert (generation.text, generation.finish_reason) == ("one", "stop")


def test_text_that_might_have_been_a_stop_text_is_told_at_the_end() -> None:
    engine = ScriptedEngine(encode("one ST"))
    generation = finished(scripted_generator(engine).start(PROMPT, greedy, stop=["STOP"]))
    assert generation.text == "one ST"


def test_max_tokens_and_the_end_of_the_context_end_a_reply() -> None:
    engine = ScriptedEngine(encode("a b c d e f"), context_length=len(PROMPT) + 2)
    generator = scripted_generator(engine)
    short = finished(generator.start(PROMPT, greedy, max_tokens=2))
    assert (short.finish_reason, len(short.token_ids)) == ("length", 2)
    full = finished(generator.start(PROMPT, greedy))
    assert (full.finish_reason, len(full.token_ids)) == ("context", 3)


def test_a_prompt_that_does_not_fit_is_refused_before_anything_changes() -> None:
    engine = ScriptedEngine(encode("a"), context_length=len(PROMPT) - 1)
    generator = scripted_generator(engine)
    finished(generator.start(PROMPT[:5], greedy))
    held = list(engine.held)
    with pytest.raises(ContextFullError, match=rf"takes {len(PROMPT)} tokens"):
        generator.start(PROMPT, greedy)
    assert engine.held == held


def test_a_later_prompt_reuses_what_it_shares() -> None:
    engine = ScriptedEngine(encode("a b"))
    generator = scripted_generator(engine)
    assert finished(generator.start(PROMPT, greedy)).reused_tokens == 0
    assert finished(generator.start(PROMPT, greedy)).reused_tokens == len(PROMPT) - 1
    assert finished(generator.start([*PROMPT[:7], 500, 501], greedy)).reused_tokens == 7
    assert engine.held[:9] == [*PROMPT[:7], 500, 501]


@pytest.mark.parametrize("stage", ["prompt", "reply"])
def test_a_reader_who_stops_leaves_a_state_that_goes_on(stage: str) -> None:
    engine = ScriptedEngine(encode("a b c d"))
    generator = scripted_generator(engine)
    generation = generator.start(PROMPT, greedy)
    for event in generation:
        if stage == "prompt" or isinstance(event, TextDelta):
            break
    generation.close()
    assert generation.finish_reason == "interrupted"
    assert bool(generation.token_ids) == (stage == "reply")
    again = finished(generator.start(PROMPT, greedy))
    assert again.reused_tokens > 0
    assert again.text == "a b c d"


def test_a_forward_that_fails_leaves_no_trace() -> None:
    engine = ScriptedEngine(encode("a b c d"))
    generator = scripted_generator(engine)
    generation = generator.start(PROMPT, greedy)
    next(event for event in generation if isinstance(event, TextDelta))

    def interrupt() -> None:
        raise KeyboardInterrupt

    engine.before_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    engine.before_step = lambda: None
    assert generation.finish_reason == "interrupted"
    again = finished(generator.start(PROMPT, greedy))
    # A compiled state cannot be trusted between the begin and the end of a forward.
    assert (again.reused_tokens, again.text) == (0, "a b c d")


def test_a_state_of_another_length_is_noticed() -> None:
    engine = ScriptedEngine(encode("a b"))
    generator = scripted_generator(engine)
    finished(generator.start(PROMPT, greedy))
    engine.held.append(7)  # a forward that ended without telling
    again = finished(generator.start(PROMPT, greedy))
    assert (again.reused_tokens, again.text) == (0, "a b")
