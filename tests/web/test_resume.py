"""Resumable generation of stock WebLLM: a page that is reloaded goes on with the same reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.web.compiled import SIZES, TINY, WINDOWS, Compiler
from tests.web.cpu_runtime import QUANT, user
from tests.web.webllm import chat, drive_webllm

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LENGTH = 24  # tokens of a reply: software takes half a second for each
INTERVAL = 6
# The client writes a token down before the checkpoint of the step that drew it, so a page that is
# left between the two has one token more than an interval behind its last checkpoint.
BEHIND = INTERVAL + 1
QUESTION = " ".join(["Tell me about the days, the months and the colours of cheese."] * 4)
SAMPLED: dict[str, Any] = {"temperature": 1.3, "top_p": 0.95, "seed": 11, "max_tokens": LENGTH}
STOPS: dict[str, Any] = {"logit_bias": {"1": -100, "106": -100}}  # no reply ends by itself
OTHER_CONTEXT = {"context_window_size": SIZES[TINY].context_length - 64}

LEFT: dict[str, tuple[int, dict[str, Any], bool]] = {
    # chunks before the reload, how the model is loaded afterwards, whether the rest is streamed
    "begun": (1, {}, True),
    "late": (16, {}, False),
    "other context": (10, OTHER_CONTEXT, False),
}
TEXTS = [name for name, (_, _, stream) in LEFT.items() if not stream]
STREAMS = [name for name, (_, _, stream) in LEFT.items() if stream]


@dataclass(frozen=True)
class Session:
    """What the client told, by the name of the step; all in one browser."""

    whole: str
    listed: dict[str, list[dict[str, Any]]]
    resumed: dict[str, dict[str, Any]]
    log: list[str]


@pytest.fixture(scope="module")
def session(
    browser: str,
    compiled: Compiler,
    tmp_path_factory: pytest.TempPathFactory,
) -> Session:
    messages = [user(QUESTION)]
    steps: list[dict[str, Any]] = [chat(messages, **SAMPLED, **STOPS)]
    for name, (after, overrides, stream) in LEFT.items():
        resumable = {"enabled": True, "sessionId": name, "checkpointIntervalTokens": INTERVAL}
        asked = {"messages": messages, "extra_body": {"resumable": resumable}, **SAMPLED, **STOPS}
        steps += [
            {"op": "leave", "request": asked, "after": after, "overrides": overrides},
            {"op": "sessions"},
            {"op": "resume", "session": name, "stream": stream},
            {"op": "forget", "session": name},
        ]
    folder = tmp_path_factory.mktemp("resume")
    told = drive_webllm(compiled(TINY, "webgpu", QUANT), steps, folder)
    whole, *rest = told["results"]
    return Session(
        whole=whole["text"],
        listed={name: rest[4 * index + 1] for index, name in enumerate(LEFT)},
        resumed={name: rest[4 * index + 2] for index, name in enumerate(LEFT)},
        log=told["log"],
    )


def test_the_rings_had_wrapped(session: Session) -> None:
    rows = -(-(WINDOWS[TINY] + SIZES[TINY].prefill_chunk - 1) // 32) * 32
    assert session.resumed["late"]["processedSeqLen"] - LENGTH > rows


@pytest.mark.parametrize("name", LEFT)
def test_the_client_finds_a_checkpoint(session: Session, name: str) -> None:
    (listed,) = session.listed[name]
    assert listed["sessionId"] == name
    assert listed["resumable"]
    assert listed["recoveryMode"] == "kv"
    assert listed["emittedTokens"] < LENGTH


@pytest.mark.parametrize("name", TEXTS)
def test_a_resumed_reply_is_the_reply_without_interruption(session: Session, name: str) -> None:
    assert session.resumed[name]["recoveredText"] == session.whole
    assert session.resumed[name]["emittedTokens"] == LENGTH


@pytest.mark.parametrize("name", STREAMS)
def test_a_resumed_stream_is_the_rest_of_the_reply(session: Session, name: str) -> None:
    rest = session.resumed[name]["text"]
    assert len(rest) > len(session.whole) / 2
    assert session.whole.endswith(rest)


@pytest.mark.parametrize("name", ["begun", "late"])
def test_few_tokens_are_forwarded_again(session: Session, name: str) -> None:
    """No prompt, and at most those since the last checkpoint."""
    (listed,) = session.listed[name]
    forwarded = len(session.resumed[name]["watched"])
    assert forwarded <= LENGTH - listed["emittedTokens"] + BEHIND


def test_keys_and_values_are_restored(session: Session) -> None:
    assert session.resumed["late"]["recoveryMode"] == "kv"
    assert session.resumed["late"]["replayedTokens"] <= BEHIND


def test_a_checkpoint_that_does_not_fit_is_replaced_by_the_tokens(session: Session) -> None:
    assert session.resumed["other context"]["recoveryMode"] == "token_replay"
    assert any("context length: expected" in line for line in session.log)
