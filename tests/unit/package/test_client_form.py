"""Strings of the client, found in chat templates of many kinds, and what they cannot say."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gemma4_compile.confined.conversation import Trial
from gemma4_compile.confined.dialogues import DIALOGUES
from gemma4_compile.errors import UsageError
from gemma4_compile.package.client_form import ClientForm, Difference, differences, find_form
from gemma4_compile.package.conversation import GEMMA
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny.checkpoint import shipped_file
from tests.unit.package.test_conversation import THOUGHT_TEMPLATE, Client, conv_template_of

TINY = shipped_file("chat_template.jinja").decode()
CHATML = """{{- bos_token -}}{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
_OWN = """{{- bos_token -}}{%- if messages[0].role != 'system' -%}
{{- '<|im_start|>system\\nIt costs $$5, $& is fine.<|im_end|>\\n' -}}{%- endif -%}"""
DEFAULT = CHATML.replace("{{- bos_token -}}", _OWN, 1)
FOLDED = """{{- bos_token -}}{%- set ns = namespace(first='') -%}
{%- if messages[0].role == 'system' -%}{%- set ns.first = messages[0].content + '\\n\\n' -%}
{%- endif -%}{%- for m in messages if m.role != 'system' -%}
{{- '<|turn>' + ('model' if m.role == 'assistant' else 'user') + '\\n' -}}
{{- (ns.first if loop.first else '') + m.content + '<turn|>\\n' -}}
{%- endfor -%}{{- '<|turn>model\\n' -}}"""
REFUSING = (
    "{%- if messages[0].role == 'system' -%}{{- raise_exception('no system') -}}{%- endif -%}"
    + FOLDED
)
DROPPING_EMPTY = TINY.replace(
    "messages and messages[0]['role'] in ['system', 'developer'] -%}",
    "messages and messages[0]['role'] in ['system', 'developer'] and messages[0]['content'] -%}",
).replace("messages[1:] if has_system", "messages[1:] if messages[0]['role'] == 'system'")
FIXED = CHATML.replace(
    "{{- bos_token -}}", "{{- bos_token -}}{{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' -}}", 1
)
SUFFIX = CHATML.replace("m.content +", "m.content + (' /no_think' if m.role == 'user' else '') +")


def trial_of(template: str) -> Trial:
    compiled = ChatTemplate(template, {"bos_token": "<bos>"})
    prompts: dict[str, str | None] = {}
    for name, each in DIALOGUES.items():
        try:
            prompts[name] = compiled.render(each.said, thinking=each.thinking, tools=each.tools)
        except UsageError:
            prompts[name] = None
    return Trial(prompts)


def form_of(template: str) -> ClientForm:
    form = find_form(trial_of(template), "<bos>")
    assert form is not None
    return form


FITTING: Mapping[str, str] = {
    "tiny": TINY,
    "empty reasoning": THOUGHT_TEMPLATE,
    "thinking switched on": "{%- set enable_thinking = true -%}" + TINY,
    "ChatML": CHATML,
    "ChatML without bos": CHATML.removeprefix("{{- bos_token -}}"),
    "a default system message": DEFAULT,
    "a reply that begins with a word": CHATML.replace("assistant\\n' -}}", "assistant\\nSure' -}}"),
    "a suffix of every question": SUFFIX,
    "a system message in the first turn": FOLDED.replace(
        "if messages[0].role == 'system' -", "if true -"
    )
    .replace("messages[0].content +", "(messages[0].content if m0 else '') +")
    .replace(
        "{{- bos_token -}}", "{{- bos_token -}}{%- set m0 = messages[0].role == 'system' -%}", 1
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_form_that_fits_has_no_difference(name: str) -> None:
    trial = trial_of(FITTING[name])
    form = form_of(FITTING[name])
    assert list(differences(form, trial)) == []
    asked = trial.prompts["a question"]
    assert asked is not None
    assert asked.startswith(form.bos + form.first_user + "What is 12")


@pytest.mark.parametrize("name", FITTING)
def test_the_client_glues_what_is_compared(name: str) -> None:
    """`glued` against the client as its published code assembles prompts, turn by turn."""
    form = form_of(FITTING[name])
    for dialogue in DIALOGUES.values():
        said = [(one.role, one.content) for one in dialogue.said]
        client = Client(conv_template_of(form))
        prompt = client.ask(said, "Yes.", stop=False)
        assert (prompt if form.bos else prompt.removeprefix("<bos>")) == form.glued(dialogue)


def test_strings_of_known_templates() -> None:
    assert form_of(TINY) == GEMMA
    chatml = form_of(CHATML)
    assert (chatml.user, chatml.assistant) == (
        "<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    )
    assert chatml.system == ("<|im_start|>system\n", "")
    assert chatml.first_user == "<|im_start|>user\n"
    thinking = form_of(FITTING["thinking switched on"])
    assert thinking.system == ("<|turn>system\n<|think|>\n", "")
    assert form_of(FITTING["ChatML without bos"]).bos == ""
    assert form_of(FITTING["a reply that begins with a word"]).reply_opening == "Sure"


def test_a_default_system_message_outlives_the_clients_replace() -> None:
    """The client's `replace` takes `$$` for a dollar, and `$&` for what is replaced."""
    form = form_of(DEFAULT)
    assert form.default_system == "It costs $$5, $& is fine."
    assert form.fields()["system_message"] == "It costs $$$$5, $$& is fine."


def test_a_first_turn_that_holds_the_system_message() -> None:
    form = form_of(FOLDED)
    assert form.system == ("<|turn>user\n", "\n\n")
    assert form.fields()["add_role_after_system_message"] is False
    # Without one the client still writes what comes behind it, as the template for an empty one.
    assert list(differences(form, trial_of(FOLDED))) == []


DIFFERING: Mapping[str, tuple[str, str, str]] = {
    "an empty system turn that is never written": (DROPPING_EMPTY, "a question", "system"),
    "no place for a system message": (REFUSING, "a system message", "verse"),
    "a system message beside another": (FIXED, "", ""),
    "something that depends on the turn": (
        CHATML.replace("'<|im_start|>' + m.role", "'<|im_start|>' + loop.index ~ m.role"),
        "two turns",
        "im_start",
    ),
    "another text for the last question": (
        CHATML.replace("m.content +", "m.content + ('!' if loop.last else '') +"),
        "two turns",
        "!",
    ),
    "early turns left out": (
        CHATML.replace("in messages -%}", "in messages[-3:] -%}"),
        "three turns",
        "12 plus",
    ),
}


@pytest.mark.parametrize("name", DIFFERING)
def test_what_the_client_cannot_say_is_a_difference(name: str) -> None:
    template, dialogue, shown = DIFFERING[name]
    found = list(differences(form_of(template), trial_of(template)))
    if not dialogue:
        assert found == []
        return
    assert dialogue in [one.dialogue for one in found]
    text = " ".join(map(str, found))
    assert shown in text
    assert all(len(one.client) <= 64 for one in found)


def test_differences_in_words_and_in_provenance() -> None:
    refused = Difference("a system message", None, "<bos>x")
    assert str(refused) == "a system message: the template refuses it, the client writes '<bos>x'"
    assert refused.to_json() == {
        "dialogue": "a system message",
        "template": None,
        "client": "<bos>x",
    }


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[-1].content | upper }}",
        "{{ bos_token }}{{ messages[-1].content }}",
        "{{ messages[0].content.split(' ') | join('_') }}",
    ],
)
def test_prompts_without_the_texts_have_no_form(template: str) -> None:
    assert find_form(trial_of(template), "<bos>") is None
