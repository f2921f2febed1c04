"""Generation on a scripted engine; tests/e2e/test_chat.py has the same on a compiled one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Generator as Steps

import pytest

from gemma4_compile.runtime import ContextFullError, Sampler, SamplingOptions
from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.engine.prompt_reading import PromptProgress
from gemma4_compile.runtime.engine.sequence import Overflow
from gemma4_compile.runtime.engine.token_engine import DeviceSampling
from gemma4_compile.runtime.reply.reply import TextDelta
from tests.scripted_engine import (
    END_OF_TURN,
    Float32Array,
    GuessingEngine,
    ScriptedEngine,
    encode,
    greedy,
    scripted_generator,
)

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
    assert (generation.reasoning, generation.text) == ("hm", "so")
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
def test_a_stop_text_ends_the_answer_and_no_reasoning(chopped: bool) -> None:
    answer = "one STOP two"
    ids = [i for letter in answer for i in encode(letter)] if chopped else encode(answer)
    engine = ScriptedEngine(encode("<|channel>thought\na STOP b\n<channel|>") + ids)
    generation = finished(scripted_generator(engine).start(PROMPT, greedy, stop=[" STOP", "x"]))
    assert generation.reasoning == "a STOP b"
    assert (generation.text, generation.finish_reason) == ("one", "stop")


def test_text_that_might_have_been_a_stop_text_is_shown_at_the_end() -> None:
    engine = ScriptedEngine(encode("one ST"))
    generation = finished(scripted_generator(engine).start(PROMPT, greedy, stop=["STOP"]))
    assert generation.text == "one ST"


def test_max_tokens_and_the_end_of_the_context_end_a_reply(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gemma4_compile")
    engine = ScriptedEngine(encode("a b c d e f"), context_length=len(PROMPT) + 2)
    generator = scripted_generator(engine)
    short = finished(generator.start(PROMPT, greedy, max_tokens=2))
    assert (short.finish_reason, len(short.token_ids)) == ("length", 2)
    full = finished(generator.start(PROMPT, greedy))
    assert (full.finish_reason, len(full.token_ids)) == ("context", 3)
    told = [line for line in caplog.messages if "reply ended" in line]
    assert told == ["reply ended: length, 2 tokens", "reply ended: context, 3 tokens"]


def test_a_prompt_that_does_not_fit_is_refused_before_anything_changes() -> None:
    engine = ScriptedEngine(encode("a"), context_length=len(PROMPT) - 1)
    generator = scripted_generator(engine)
    finished(generator.start(PROMPT[:5], greedy))
    held = list(engine.held)
    with pytest.raises(ContextFullError, match=rf"takes {len(PROMPT)} tokens") as raised:
        generator.start(PROMPT, greedy)
    assert raised.value.overflow == Overflow(len(PROMPT), len(PROMPT) - 1)
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


class Drawing(ScriptedEngine):
    """Draws by itself, a step ahead, as `Engine` does on a GPU; its own logits are refused.

    Attributes
    ----------
    uniforms : what decided about each token
    """

    is_faster = True
    uniforms: tuple[float, ...] = ()

    @property
    def sampling(self) -> DeviceSampling:
        return self

    def draw_last(self, *_: object) -> int:
        raise AssertionError("there are no rounds")

    def sampled(
        self,
        temperature: float,
        top_p: float,
        random: Callable[[], float],
        token_id: int | None = None,
    ) -> Steps[int, None, None]:
        assert (temperature, top_p, token_id) == (1.0, 0.9, None)
        said = 0
        while True:
            self.uniforms += (random(),)
            token_id = self.reply[said] if said < len(self.reply) else END_OF_TURN
            ahead = len(self.held) < self.context_length
            self.held += [token_id] * ahead
            said += 1
            try:
                yield token_id
            except GeneratorExit:
                self.held = self.held[: len(self.held) - ahead]
                raise
            assert ahead

    def decode(self, token_id: int) -> Float32Array:
        raise AssertionError("the device draws")


DRAWN = SamplingOptions(temperature=1.0, top_p=0.9)
SEED = 3  # with which the first token of nearly flat logits does not end the reply


def test_a_device_that_draws_gives_the_same_replies_and_state() -> None:
    plain, drawing = ScriptedEngine(encode("a b c")), Drawing(encode("a b c"))
    for engine, chooser in ((plain, greedy), (drawing, Sampler(DRAWN, seed=1))):
        generator = scripted_generator(engine)
        whole = finished(generator.start(PROMPT, chooser))
        assert (whole.text, whole.finish_reason) == ("a b c", "stop")
        assert engine.held == [*PROMPT, *encode("a b c")], "the stop token is taken back"
        assert generator.rewind([*PROMPT, *encode("a b c"), 7]) == len(engine.held)
        short = finished(generator.start(PROMPT, chooser, max_tokens=2))
        assert (short.finish_reason, short.token_ids) == ("length", encode("a b c")[:2])
        assert engine.held == [*PROMPT, *encode("a b c")[:1]]
        stopped = finished(generator.start(PROMPT, chooser, stop=["b"]))
        assert stopped.text.strip() == "a"
    assert plain.held == drawing.held
    expected = Sampler(DRAWN, seed=1)
    assert list(drawing.uniforms) == [expected.random() for _ in drawing.uniforms], "one a token"


def test_a_device_draws_up_to_the_end_of_the_context() -> None:
    engine = Drawing(encode("a b c d e f"), context_length=len(PROMPT) + 2)
    generator = scripted_generator(engine)
    full = finished(generator.start(PROMPT, Sampler(DRAWN)))
    assert (full.finish_reason, len(full.token_ids)) == ("context", 3)
    assert len(engine.held) == engine.context_length


def test_who_stops_reading_a_drawn_reply_leaves_a_state_that_can_be_used() -> None:
    engine = Drawing(encode("a b c d e f"))
    generator = scripted_generator(engine)
    generation = generator.start(PROMPT, Sampler(DRAWN))
    for event in generation:
        if isinstance(event, TextDelta):
            break
    generation.close()
    assert generation.finish_reason == "interrupted"
    count = len(generation.token_ids)
    assert engine.held == [*PROMPT, *encode("a b c d e f")[: count - 1]]
    assert generator.rewind([*PROMPT, 1]) == len(PROMPT)


@pytest.mark.parametrize(
    "options", [SamplingOptions(0.0), SamplingOptions(1.0, 64, 0.9), SamplingOptions(0.001)]
)
def test_what_a_device_cannot_draw_is_chosen_from_logits(options: SamplingOptions) -> None:
    engine = Drawing(encode("a b c"))
    with pytest.raises(AssertionError, match="the device draws"):
        finished(scripted_generator(engine).start(PROMPT, Sampler(options, SEED)))
    engine.is_faster = False
    with pytest.raises(AssertionError, match="the device draws"):
        finished(scripted_generator(engine).start(PROMPT, Sampler(DRAWN, SEED)))


def test_guesses_are_counted_for_the_reply_that_they_were_made_for() -> None:
    engine = GuessingEngine(encode("one two three four five"))
    generator = scripted_generator(engine)
    replies = [generator.start(PROMPT, greedy, max_tokens=7) for _ in range(3)]
    for reply in replies:
        finished(reply)
        assert reply.text == replies[0].text
    assert [reply.drafting for reply in replies] == [replies[0].drafting] * 3
    assert replies[0].drafting is not None
    assert 0 < replies[0].drafting.accepted < 7
    assert generator.drafting.accepted == 3 * replies[0].drafting.accepted


def test_guesses_of_a_reply_that_is_broken_off_are_counted_too() -> None:
    engine = GuessingEngine(encode("one two three four five six seven"))
    generation = scripted_generator(engine).start(PROMPT, greedy)
    for _ in generation:
        if len(generation.token_ids) == 4:
            break
    generation.close()
    assert generation.drafting is not None
    assert (generation.drafting.steps, generation.drafting.guessed) == (1, 4)
