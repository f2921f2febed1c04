"""Stock WebLLM in headless Chromium against the Python runtime: replies, ends, modes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gemma4_compile.package import conversation
from tests.marks import slow_unless
from tests.tiny_answers import CONVERSATIONS
from tests.web.compiled import TINY, Compiler
from tests.web.cpu_runtime import (
    ENOUGH,
    LENGTH,
    MARGIN,
    QUANT,
    Message,
    Questions,
    Runtime,
    assistant,
    system,
    user,
    with_system_turn,
)
from tests.web.webllm import Reply, chat, run_in_webllm

pytestmark = pytest.mark.browser

USER_SEED = 7
Messages = list[Message]


GREEDY: dict[str, Any] = {"temperature": 0}


@dataclass(frozen=True)
class Session:
    """Everything that is asked of the client, in one browser: loading takes long in software."""

    replies: dict[str, Reply]
    requests: dict[str, Messages]
    stats: Mapping[str, Any] | None


@pytest.fixture(scope="module", params=slow_unless(lambda kind: False, ["plain", "fast"]))
def session(
    request: pytest.FixtureRequest,
    browser: str,
    compiled: Compiler,
    runtime: Runtime,
    questions: Questions,
    tmp_path_factory: pytest.TempPathFactory,
) -> Session:
    first, other = questions.stopping
    long, _ = questions.going_on
    answers = {
        text: runtime.decode(runtime.greedy(runtime.prompt([system(""), user(text)]), count)[0])
        for text, count in ((first, ENOUGH), (long, LENGTH))
    }
    hot: dict[str, Any] = {
        **{"temperature": 3.0, "top_p": 1.0, "max_tokens": LENGTH},
        "ignore_eos": True,  # so hot, the first token may be the end
    }
    bias = {str(runtime.encode("cheese")[0]): 100}
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "yy"]}, "n": {"type": "integer", "maximum": 9}},
        "required": ["a", "n"],
        "additionalProperties": False,
    }
    json_mode = {"type": "json_object", "schema": json.dumps(schema)}
    spaces = {str(token): -100 for text in (" ", "\n", "\t") for token in runtime.encode(text)}
    asked: dict[str, tuple[Messages, dict[str, Any]]] = {
        "stops": ([user(first)], {**GREEDY, "max_tokens": ENOUGH}),
        "after stop": (
            [user(first), assistant(answers[first]), user(other)],
            {**GREEDY, "max_tokens": LENGTH},
        ),
        "cut": ([user(long)], {**GREEDY, "max_tokens": LENGTH}),
        "after cut": (
            [user(long), assistant(answers[long]), user(other)],
            {**GREEDY, "max_tokens": LENGTH},
        ),
        "system": ([system("Be brief."), user(long)], {**GREEDY, "max_tokens": LENGTH}),
        "one piece": ([user(long)], {**GREEDY, "max_tokens": LENGTH, "stream": False}),
        "seed": ([user(long)], {**hot, "seed": USER_SEED}),
        "same seed": ([user(long)], {**hot, "seed": USER_SEED}),
        "other seed": ([user(long)], {**hot, "seed": USER_SEED + 1}),
        "bias": ([user(long)], {**GREEDY, "max_tokens": 4, "logit_bias": bias}),
        "penalties": (
            [user(long)],
            {**GREEDY, "max_tokens": LENGTH, "frequency_penalty": 1.5, "presence_penalty": 0.5},
        ),
        "logprobs": (
            [user(long)],
            {**GREEDY, "max_tokens": 3, "stream": False, "logprobs": True, "top_logprobs": 2},
        ),
        "json": (
            [user(long)],
            {**GREEDY, "max_tokens": 60, "response_format": json_mode, "logit_bias": spaces},
        ),
        "after json": ([user(long)], {**GREEDY, "max_tokens": LENGTH}),
        "interrupted": ([user(long)], {**GREEDY, "max_tokens": 400}),
        "reloaded": ([user(long)], {**GREEDY, "max_tokens": LENGTH}),
    }
    steps: list[dict[str, Any]] = []
    for name, (messages, options) in asked.items():
        if name == "reloaded":
            steps += [{"op": "unload"}, {"op": "reload"}]
        interrupt = 3 if name == "interrupted" else None
        steps.append(chat(messages, interrupt_after=interrupt, **options))
    folder = tmp_path_factory.mktemp("webllm")
    fast = request.getfixturevalue("fast_module") if request.param == "fast" else None
    replies = run_in_webllm(compiled(TINY, "webgpu", QUANT), steps, folder, fast=fast)
    return Session(
        dict(zip(asked, replies, strict=True)),
        {name: messages for name, (messages, _) in asked.items()},
        json.loads((folder / "result.json").read_text()).get("stats"),
    )


def test_the_module_runs_steps_ahead_and_has_nothing_to_complain(session: Session) -> None:
    """The tests of this file compare both sessions with the Python runtime."""
    if session.stats is None:  # the plain session
        return
    assert session.stats["reasons"] == []
    assert session.stats["device"].startswith("passed")  # loaded twice
    assert session.stats["aheadSteps"] > 50
    assert session.stats["replayedSteps"] > 20


def prompt_of(session: Session, runtime: Runtime, name: str) -> list[int]:
    return runtime.prompt(with_system_turn(session.requests[name]))


@pytest.mark.parametrize(
    "name",
    ["stops", "after stop", "cut", "after cut", "system", "one piece", "after json", "reloaded"],
)
def test_model_is_given_the_prompt_of_its_template(
    name: str, session: Session, runtime: Runtime
) -> None:
    prompt = prompt_of(session, runtime, name)
    assert list(session.replies[name].watched[: len(prompt)]) == prompt


@pytest.mark.parametrize(
    "name", ["cut", "after stop", "after cut", "system", "one piece", "after json", "reloaded"]
)
def test_greedy_reply_equals_the_python_runtime(
    name: str, session: Session, runtime: Runtime
) -> None:
    prompt = prompt_of(session, runtime, name)
    tokens, margin = runtime.greedy(prompt, LENGTH)
    if margin <= MARGIN:
        pytest.fail("the test's question has an unclear reply: choose another one")
    assert session.replies[name].text == runtime.decode(tokens)
    forwarded = session.replies[name].watched[len(prompt) :]
    assert list(forwarded) == tokens[: len(forwarded)]


def test_reply_ends_at_the_end_of_turn(session: Session, runtime: Runtime) -> None:
    reply = session.replies["stops"]
    tokens, _ = runtime.greedy(prompt_of(session, runtime, "stops"), ENOUGH)
    assert reply.finish == "stop"
    assert reply.text == runtime.decode(tokens)
    assert reply.usage["completion_tokens"] == len(tokens) + 1


def test_reply_ends_at_the_length_that_was_asked_for(session: Session) -> None:
    assert session.replies["cut"].finish == "length"
    assert session.replies["cut"].usage["completion_tokens"] == LENGTH


def test_a_stopped_reply_keeps_its_state(session: Session, runtime: Runtime) -> None:
    """The client forwards the new turn only: fewer prompt tokens than the whole conversation."""
    whole = len(prompt_of(session, runtime, "after stop"))
    assert session.replies["after stop"].usage["prompt_tokens"] < whole
    whole = len(prompt_of(session, runtime, "after cut"))
    assert session.replies["after cut"].usage["prompt_tokens"] == whole


def test_replies_are_streamed(session: Session) -> None:
    assert session.replies["cut"].chunks > 3


def test_seeds_repeat_a_reply_and_vary_it(session: Session) -> None:
    assert session.replies["seed"].text == session.replies["same seed"].text
    assert session.replies["seed"].text != session.replies["other seed"].text


def test_logit_bias_forces_a_token(session: Session, runtime: Runtime) -> None:
    token = runtime.encode("cheese")[0]
    assert session.replies["bias"].text == runtime.decode([token] * 4)


def test_penalties_are_those_of_the_request(session: Session, runtime: Runtime) -> None:
    def penalised(logits: Any, tokens: list[int]) -> Any:
        for token in set(tokens):
            logits[token] -= 0.5 + 1.5 * tokens.count(token)
        return logits

    prompt = prompt_of(session, runtime, "penalties")
    tokens, _ = runtime.greedy(prompt, LENGTH, penalised)
    assert session.replies["penalties"].text == runtime.decode(tokens)


def test_logprobs_are_those_of_the_logits(session: Session, runtime: Runtime) -> None:
    """At the client's lowest temperature the chosen token has all of the probability."""
    logprobs = session.replies["logprobs"].logprobs
    assert logprobs is not None
    assert [round(entry["logprob"], 3) for entry in logprobs["content"]] == [0.0] * 3


def test_json_mode_follows_its_schema(session: Session) -> None:
    reply = session.replies["json"]
    value = json.loads(reply.text)
    assert reply.finish == "stop"
    assert set(value) == {"a", "n"}
    assert value["a"] in ("x", "yy")
    assert isinstance(value["n"], int)


def test_interrupted_reply_ends_early(session: Session) -> None:
    reply = session.replies["interrupted"]
    assert reply.finish == "abort"
    assert reply.usage["completion_tokens"] < 400


@pytest.mark.slow
def test_a_page_can_leave_the_system_turn_out(
    browser: str,
    nine_libraries: Path,
    runtime: Runtime,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of a package with every library for browsers, of which the client takes the main one."""
    name = {"name": conversation.OPEN_USER}
    (memory,) = (each for each in CONVERSATIONS if each.name == "memory")
    remembered: list[dict[str, Any]] = []
    said: Messages = []
    for question, answer in memory.turns:
        remembered.append(chat([*said, user(question)], **GREEDY))
        said += [user(question), assistant(answer)]
    steps = [
        *remembered,
        chat([{**user("Hi."), **name}], **GREEDY, max_tokens=3),
        chat([{**user("Hi."), **name}, assistant("Hello."), user("Who?")], **GREEDY, max_tokens=3),
        {"op": "provokeError"},
    ]
    folder = tmp_path_factory.mktemp("webllm")
    with pytest.raises(AssertionError, match="MapRead"):  # the watch on WebGPU errors works
        run_in_webllm(
            nine_libraries,
            steps,
            folder,
            overrides={"conv_config": {"render_empty_system_message": False}},
        )
    told = json.loads((folder / "result.json").read_text())["results"]
    answers = [told.pop(0)["text"] for _ in remembered]
    assert answers == [answer for _, answer in memory.turns]
    asked = ([user("Hi.")], [user("Hi."), assistant("Hello."), user("Who?")])
    for messages, answer in zip(asked, told, strict=False):
        prompt = runtime.prompt(messages)
        assert answer["watched"][: len(prompt)] == prompt
