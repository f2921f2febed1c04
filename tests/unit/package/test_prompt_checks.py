"""What prompts lack, and what is said of it."""

from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer

from gemma4_compile.confined.conversation import Trial
from gemma4_compile.package.prompt_checks import prompt_findings
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.unit.package.test_client_form import CHATML, trial_of

TOKENIZER = Tokenizer.from_buffer(shipped_file("tokenizer.json"))
ADDED = {token.content: index for index, token in TOKENIZER.get_added_tokens_decoder().items()}
TINY = shipped_file("chat_template.jinja").decode()


def found(template: str, stops: tuple[int, ...] = (1, 106)) -> list[str]:
    prompts = trial_of(template).prompts
    ids = {name: TOKENIZER.encode(text or "").ids for name, text in prompts.items()}
    findings = prompt_findings(Trial(prompts, ids), template, ADDED, 2, stops)
    assert all(one.hint for one in findings)
    return [f"{one.message}; {one.hint}" for one in findings]


def test_nothing_is_said_of_templates_as_they_should_be() -> None:
    assert found(TINY) == []
    assert prompt_findings(Trial(), None, ADDED, 2, [1]) == []


PROMPTS = {
    "no bos": (TINY.replace("{{- bos_token -}}", ""), "begin without `<bos>`: the chat template"),
    "a bos without a name": (TINY.replace("bos_token", "bos_token0"), "no file .* names"),
    "two": (TINY.replace("bos_token", "bos_token * 2"), "hold `<bos>` 2 times"),
    "one in every turn": (
        TINY.replace("{{- '<|turn>' + role", "{{- bos_token + '<|turn>' + role"),
        "hold `<bos>` 2 times",
    ),
    "not first": (TINY.replace("{{- bos_token -}}", "x{{ bos_token }}"), "do not begin with"),
    "no system": (
        TINY.replace("{{- plain(messages[0]['content']) -}}", ""),
        "leaves out a system message",
    ),
    "no earlier replies": (
        TINY.replace("{{- text -}}", ""),
        "leaves out what the model said before",
    ),
    "another end": (
        TINY.replace("<turn|>", "<|tool>"),
        r"ends a reply by `<\|tool>`, .* add its id \d+ to `eos_token_id`",
    ),
    "no token at the end": (CHATML, r"'<\|im_end\|>.*begins with no stop token"),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_what_changes_replies_is_said(name: str) -> None:
    template, expected = PROMPTS[name]
    (said,) = found(template)
    assert re.search(expected, said)


def test_the_end_of_a_reply_may_follow_white_space() -> None:
    assert found(TINY.replace("<turn|>", " \n<turn|>")) == []
