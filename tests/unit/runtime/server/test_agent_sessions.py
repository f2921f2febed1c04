"""Two turns of docs/agents.md's programs, as recorded: the shapes are theirs, the words ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gemma4_compile.tiny.checkpoint import shipped_file
from tests.live_server import Live, serving_script
from tests.scripted_engine import ScriptedEngine, encode

TEMPLATE = shipped_file("chat_template.jinja").decode()
CALL = '<|tool_call>call:run{command:<|"|>ls<|"|>}<tool_call|>'
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
    "required": ["command"],
    "additionalProperties": False,
}
SHORT = {"type": "ephemeral"}
RULES = "Work in the folder that you are given. " * 12


def events(answer: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def claude_code(live: Live, bill: str, *turns: Any) -> list[dict[str, Any]]:
    """Claude Code 2.1: a bill before the system's text, the system again after the user."""
    header = f"x-anthropic-billing-header: cc_version=2.{bill}; cch={bill};"
    reminder = {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>\n"}
    body = {
        "model": "claude-x",
        "max_tokens": 200,
        "stream": True,
        "system": [
            {"type": "text", "text": header},
            {"type": "text", "text": "You are an agent.", "cache_control": SHORT},
            {"type": "text", "text": RULES, "cache_control": {**SHORT, "ttl": "1h"}},
        ],
        "messages": [
            {"role": "user", "content": [reminder, {"type": "text", "text": "List the files."}]},
            {"role": "system", "content": "Agents that there are: none."},
            *turns,
        ],
        "tools": [{"name": "run", "description": "Runs.", "input_schema": SCHEMA}],
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": json.dumps({"session_id": bill})},
    }
    headers = {"anthropic_version": "2023-06-01", "anthropic_beta": "effort-2025-11-24"}
    status, _, answer = live.request("POST", "/v1/messages?beta=true", body, **headers)
    assert status == 200, answer
    return events(answer)


def codex(live: Live, turn: str, *items: Any) -> list[dict[str, Any]]:
    """Codex 0.171: developers' messages, tools in a namespace, one of OpenAI's own."""
    run = {"type": "function", "name": "run", "description": "Runs.", "strict": False}
    body = {
        "model": "gpt-x",
        "stream": True,
        "store": False,
        "input": [
            {
                "type": "message",
                "id": f"msg_{turn}",
                "role": "developer",
                "content": [{"type": "input_text", "text": text} for text in (RULES, "Be brief.")],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ls"}]},
            *items,
        ],
        "tools": [
            {**run, "parameters": SCHEMA},
            {"type": "namespace", "name": "crew", "description": "", "tools": [{**run}]},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "session",
        "client_metadata": {"turn_id": turn},
    }
    status, _, answer = live.request("POST", "/v1/responses", body, session_id="s")
    assert status == 200, answer
    return events(answer)


def opencode(live: Live, turn: str, *messages: Any) -> list[dict[str, Any]]:
    """Agents over OpenAI's chats: opencode, pi, Cline and Continue differ in few fields."""
    function = {"name": "run", "description": "Runs.", "parameters": SCHEMA, "strict": False}
    body = {
        "model": "gemma4",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 200,
        "store": False,
        "reasoning_effort": "high",
        "user": turn,
        "messages": [
            {"role": "system", "content": RULES},
            {"role": "user", "content": [{"type": "text", "text": "List the files."}]},
            *messages,
        ],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
    }
    status, _, answer = live.request("POST", "/v1/chat/completions", body)
    assert status == 200, answer
    return events(answer)


@pytest.fixture
def engine() -> ScriptedEngine:
    thought = "<|channel>thought\nI have to look.\n<channel|>"
    return ScriptedEngine(encode(thought + CALL), context_length=4096, prefill_chunk=512)


def says_last(engine: ScriptedEngine) -> None:
    """After a result the template has opened reasoning."""
    engine.reply = encode("Now I know.\n<channel|>One file.")


def test_claude_code(engine: ScriptedEngine) -> None:
    with serving_script(engine, TEMPLATE) as live:
        assert live.request("HEAD", "/")[0] == 200
        first = claude_code(live, "1")
        blocks = [e["content_block"] for e in first if e["type"] == "content_block_start"]
        assert [block["type"] for block in blocks] == ["thinking", "tool_use"]
        (signature,) = [e["delta"]["signature"] for e in first if "signature" in e.get("delta", {})]
        thinking = {"type": "thinking", "thinking": "I have to look.", "signature": signature}
        call = {**blocks[1], "input": {"command": "ls"}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a.txt"}
        says_last(engine)
        second = claude_code(
            live,
            "2",
            {"role": "assistant", "content": [thinking, call]},
            {"role": "user", "content": [{**result, "is_error": False, "cache_control": SHORT}]},
        )
    usage = next(e for e in second if e["type"] == "message_delta")["usage"]
    assert (
        usage["cache_read_input_tokens"] > 10 * usage["input_tokens"]
    )  # another bill, same prompt
    text = "".join(e["delta"].get("text", "") for e in second if "delta" in e)
    assert text == "One file."


def test_codex(engine: ScriptedEngine) -> None:
    with serving_script(engine, TEMPLATE) as live:
        items = [e["item"] for e in codex(live, "1") if e["type"] == "response.output_item.done"]
        assert [item["type"] for item in items] == ["reasoning", "function_call"]
        output = {"type": "function_call_output", "call_id": items[1]["call_id"], "output": "a.txt"}
        kept = {name: items[0][name] for name in ("type", "id", "summary", "encrypted_content")}
        says_last(engine)
        *_, last = codex(live, "2", kept, items[1], output)
    usage = last["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > 0.9 * usage["input_tokens"]
    assert last["response"]["output"][-1]["content"][0]["text"] == "One file."


def test_agents_over_chats(engine: ScriptedEngine) -> None:
    with serving_script(engine, TEMPLATE) as live:
        deltas = [c["delta"] for e in opencode(live, "1") for c in e["choices"]]
        reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
        (calls,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        reply = {"role": "assistant", "content": "", "reasoning_content": reasoning}
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "a.txt"}
        says_last(engine)
        told = opencode(live, "2", {**reply, "tool_calls": calls}, result)
    usage = told[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0.9 * usage["prompt_tokens"]
    text = "".join(c["delta"].get("content") or "" for e in told for c in e["choices"])
    assert text == "One file."
