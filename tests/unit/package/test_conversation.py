"""The chat template as the client assembles it, against the rules of Gemma 4's own template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import pytest

from gemma4_compile import tiny
from gemma4_compile.confined.conversation import Trial
from gemma4_compile.confined.dialogues import DIALOGUES
from gemma4_compile.errors import CheckpointError
from gemma4_compile.package import conversation
from gemma4_compile.package.client_form import ClientForm, find_form
from gemma4_compile.template.chat_template import ChatTemplate

TINY = Path(tiny.__file__).parent / "files"
TOKENIZER = json.loads((TINY / "tokenizer.json").read_text())
VOCABULARY = len(TOKENIZER["model"]["vocab"]) + 100
GENERATION = json.loads((TINY / "generation_config.json").read_text())

Message = tuple[str, str]
QUESTION, ANSWER, AGAIN = ("user", "Hi there?"), ("assistant", "Hello."), ("user", "And again?")

TEMPLATE = (TINY / "chat_template.jinja").read_text()
# As the models without per-layer embeddings open a reply.
THOUGHT_TEMPLATE = TEMPLATE.replace(
    "{{- '<|turn>model\\n' -}}\n    {%- elif",
    "{{- '<|turn>model\\n' -}}{%- if not thinking -%}{{- '<|channel>thought\\n<channel|>' -}}"
    "{%- endif -%}\n    {%- elif",
)


class ConvTemplate(TypedDict):
    """The fields of `conv_template` that a client reads."""

    system_template: str
    system_message: str
    render_empty_system_message: bool
    add_role_after_system_message: bool
    system_prefix_token_ids: list[int]
    roles: dict[str, str]
    role_templates: dict[str, str]
    role_content_sep: str
    role_empty_sep: str
    seps: list[str]
    stop_token_ids: list[int]


def form_of(template: str | None) -> ClientForm | None:
    """The client's strings, from what the template makes of the dialogues."""
    if template is None:
        return None
    compiled = ChatTemplate(template, {"bos_token": "<bos>"})
    prompts = {name: compiled.render(each.said) for name, each in DIALOGUES.items()}
    return find_form(Trial(prompts), "<bos>")


def chat_config(template: str | None = TEMPLATE) -> dict[str, object]:
    return conversation.chat_template_config(
        vocab_size=VOCABULARY,
        bos_token_id=2,
        eos_token_ids=(1, 106),
        tokenizer=TOKENIZER,
        generation_config=GENERATION,
        form=form_of(template),
    )


def conv_template_of(form: ClientForm) -> ConvTemplate:
    return cast(ConvTemplate, conversation.conversation_template(2, [1], form))


def conv_template(config: Mapping[str, object]) -> ConvTemplate:
    return cast(ConvTemplate, config["conv_template"])


def render(messages: Sequence[Message], reasoning: str = "") -> str:
    """Gemma 4's own template for text, thinking off, with the generation prompt."""
    text = "<bos>"
    for role, content in messages:
        text += f"<|turn>{'model' if role == 'assistant' else role}\n{content.strip()}<turn|>\n"
    return text + "<|turn>model\n" + reasoning


@dataclass
class Client:
    """What the pinned client forwards for each request, written from its published code.

    `forwarded` is everything the model has seen: prompts, and of each reply all but its last token,
    which is the stop token where the reply ended by one.
    """

    template: ConvTemplate
    forwarded: list[str] = field(default_factory=list)
    history: list[tuple[str, str, str]] = field(default_factory=list)
    ended_by_stop: bool = False
    system: str | None = None

    def ask(self, messages: Sequence[Message], reply: str, *, stop: bool, name: str = "") -> str:
        """Send a request, take `reply` as the model's answer, return the prompt it answered."""
        system = next((text for role, text in messages if role == "system"), None)
        turns: list[tuple[str, str, str]] = []
        for role, text in messages:
            if role != "system":
                opener = name if name and not turns else self.template["roles"][role]
                turns.append((role, opener, text))
        same = (self.history, self.system) == (turns[:-1], system)
        if not (self.ended_by_stop and same):
            self.forwarded = ["<bos>"]
            text = self._system(system)
            self.forwarded += [text] if text else []
            fresh = turns
        else:
            text, fresh = "", turns[-1:]
        bare = bool(text) and not self.template["add_role_after_system_message"]
        self.forwarded += [
            self._segment(*turn, bare=bare and index == 0) for index, turn in enumerate(fresh)
        ]
        self.forwarded.append(self.template["roles"]["assistant"] + self.template["role_empty_sep"])
        prompt = "".join(self.forwarded)
        self.history = [*turns, ("assistant", self.template["roles"]["assistant"], reply)]
        self.system, self.ended_by_stop = system, stop
        self.forwarded.append(reply)
        return prompt

    def _system(self, message: str | None) -> str:
        text = self.template["system_message"] if message is None else message
        if text == "" and self.template["render_empty_system_message"] is False:
            return ""
        text = text.replace("$$", "$")  # as JavaScript's `replace` reads it
        return self.template["system_template"].replace("{system_message}", text, 1)

    def _segment(self, role: str, opener: str, text: str, *, bare: bool) -> str:
        placeholder = {"user": "{user_message}", "assistant": "{assistant_message}"}[role]
        before, after = self.template["role_templates"][role].split(placeholder)
        (separator,) = self.template["seps"]  # the same behind every message
        prefix = "" if bare else opener + self.template["role_content_sep"]
        return prefix + before + text + after + separator


def new_client(template: str | None = TEMPLATE, **overrides: object) -> Client:
    return Client(cast(ConvTemplate, {**conv_template(chat_config(template)), **overrides}))


SYSTEMS = {"given": [("system", "Be brief.")], "empty": [("system", "")]}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
@pytest.mark.parametrize("stop", [True, False], ids=["kv reused", "prefilled anew"])
def test_every_turn_sees_the_prompt_of_the_template(system: list[Message], stop: bool) -> None:
    client = new_client()
    messages = list(system)
    for turn in range(4):
        messages.append(("user", f"Question {turn}?"))
        assert client.ask(messages, f"Answer {turn}.", stop=stop) == render(messages)
        messages.append(("assistant", f"Answer {turn}."))


def test_both_ways_may_alternate_in_one_conversation() -> None:
    client = new_client()
    messages: list[Message] = [("system", "Be brief.")]
    for stop in (True, False, False, True, True):
        messages.append(AGAIN)
        assert client.ask(messages, "Yes.", stop=stop) == render(messages)
        messages.append(("assistant", "Yes."))


def test_absent_system_message_becomes_an_empty_system_turn() -> None:
    client = new_client()
    assert client.ask([QUESTION], "Hello.", stop=True) == render([("system", ""), QUESTION])
    follow_up = [QUESTION, ANSWER, AGAIN]
    assert client.ask(follow_up, "Yes.", stop=True) == render([("system", ""), *follow_up])


@pytest.mark.parametrize("stop", [True, False], ids=["kv reused", "prefilled anew"])
def test_a_page_can_leave_the_system_turn_out(stop: bool) -> None:
    client = new_client(render_empty_system_message=False)
    name = conversation.OPEN_USER
    assert client.ask([QUESTION], "Hello.", stop=stop, name=name) == render([QUESTION])
    messages = [QUESTION, ANSWER, AGAIN]
    assert client.ask(messages, "Yes.", stop=stop, name=name) == render(messages)


def test_bos_comes_once_and_from_ids_only() -> None:
    config = chat_config()
    template = conv_template(config)
    assert template["system_prefix_token_ids"] == [2]
    assert "<bos>" not in json.dumps(template)
    assert TOKENIZER["post_processor"] is None


def test_the_released_templates_have_the_strings_of_gemma() -> None:
    assert form_of(TEMPLATE) == conversation.GEMMA
    assert THOUGHT_TEMPLATE != TEMPLATE
    reasoning = "<|channel>thought\n<channel|>"
    assert form_of(THOUGHT_TEMPLATE) == replace(conversation.GEMMA, reply_opening=reasoning)


def test_empty_reasoning_follows_the_checkpoints_template() -> None:
    client = new_client(THOUGHT_TEMPLATE)
    reasoning = "<|channel>thought\n<channel|>"
    assert client.ask([QUESTION], "Hello.", stop=False).endswith(render([QUESTION], reasoning)[5:])
    # A full prefill drops the reasoning of earlier turns, as the template does.
    prompt = client.ask([QUESTION, ANSWER, AGAIN], "Yes.", stop=False)
    assert prompt == render([("system", ""), QUESTION, ANSWER, AGAIN], reasoning)


@pytest.mark.parametrize("template", [TEMPLATE, None], ids=["tiny", "no template"])
def test_no_empty_reasoning_otherwise(template: str | None) -> None:
    assert conv_template(chat_config(template))["role_empty_sep"] == ""


def test_segments_tokenize_like_the_whole_prompt() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    client = new_client()
    messages = [("system", "Be brief. "), ("user", "A\n\nB"), ANSWER, ("user", "  two spaces\n")]
    client.ask(messages, "", stop=False)
    pieces = list(client.template["system_prefix_token_ids"])
    for text in client.forwarded[1:]:
        pieces += tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.encode("".join(client.forwarded), add_special_tokens=False).ids
    assert pieces == whole
    assert whole.count(2) == 1
    assert whole[:2] == [2, 105]


def test_stop_ids_are_the_generation_configs_and_the_end_of_turn() -> None:
    assert conv_template(chat_config())["stop_token_ids"] == [1, 106, 50]
    bare = _stops_of(TOKENIZER)
    assert conv_template(bare)["stop_token_ids"] == [1, 106]
    assert bare["eos_token_id"] == [1, 106]
    of_gemma3n = {"added_tokens": [{"content": "<end_of_turn>", "id": 106}]}
    assert conv_template(_stops_of(of_gemma3n))["stop_token_ids"] == [1, 106]


def _stops_of(tokenizer: dict[str, Any]) -> dict[str, Any]:
    return conversation.chat_template_config(
        vocab_size=VOCABULARY,
        bos_token_id=2,
        eos_token_ids=(1,),
        tokenizer=tokenizer,
        generation_config={},
        form=None,
    )


@pytest.mark.parametrize("ids", [-1, [], [-1], [VOCABULARY, 2**62]])
def test_ids_of_no_token_end_no_reply(ids: object) -> None:
    config = conversation.chat_template_config(
        vocab_size=VOCABULARY,
        bos_token_id=-1,
        eos_token_ids=(1,),
        tokenizer={**TOKENIZER, "added_tokens": []},
        generation_config={"eos_token_id": ids},
        form=None,
    )
    assert conv_template(config)["stop_token_ids"] == []
    assert conv_template(config)["system_prefix_token_ids"] == []


def test_sampling_defaults_are_the_generation_configs() -> None:
    config = chat_config()
    names = ("temperature", "top_p", "top_k")
    assert [config[name] for name in names] == [GENERATION[name] for name in names]
    assert config["repetition_penalty"] == 1.0
    assert conversation.sampling_defaults({"do_sample": False, "top_k": 5})["temperature"] == 0.0
    assert conversation.sampling_defaults({}) == conversation.NEUTRAL_SAMPLING
    # No limit, in the words of other programs; transformers takes a top_p of 1 or more as none.
    unlimited = {"top_k": -1, "top_p": 1.5}
    assert conversation.sampling_defaults(unlimited) == conversation.NEUTRAL_SAMPLING
    assert conversation.declared_stops({"eos_token_id": [1.0, 106]}, ()) == [1, 106]
    extreme = conversation.sampling_defaults({"temperature": 5e-324, "top_p": 0})
    assert extreme["temperature"] == 0.0
    assert 0 < extreme["top_p"] < 1e-6  # the client refuses 0


def test_tokenizer_info_reads_the_steps() -> None:
    assert chat_config()["tokenizer_info"] == {
        "token_postproc_method": "byte_fallback",
        "prepend_space_in_encode": False,
        "strip_space_in_decode": False,
    }
    byte_level = {"decoder": {"type": "ByteLevel"}, "normalizer": None}
    assert conversation.tokenizer_info(byte_level)["token_postproc_method"] == "byte_level"
    sentencepiece = {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Strip"}]},
    }
    assert conversation.tokenizer_info(sentencepiece) == {
        "token_postproc_method": "byte_fallback",
        "prepend_space_in_encode": True,
        "strip_space_in_decode": True,
    }


@pytest.mark.parametrize(
    ("generation", "named"),
    [
        ({"top_p": "high"}, "top_p"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_k": float("nan")}, "top_k"),
        ({"eos_token_id": "x"}, "eos"),
        ({"eos_token_id": [1, 2**63]}, "found 9223"),
        ({"eos_token_id": [None]}, "found None"),
        ({"eos_token_id": list(range(257))}, "at most 256"),
        ({"eos_token_id": [1] * 100_000}, "100000 ids"),
    ],
)
def test_damaged_generation_config_is_an_error_that_names_the_key(
    generation: dict[str, object], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        conversation.chat_template_config(
            vocab_size=VOCABULARY,
            bos_token_id=2,
            eos_token_ids=(1,),
            tokenizer=TOKENIZER,
            generation_config=generation,
            form=None,
        )


def test_many_nested_steps_are_read() -> None:
    """Deeper than Python calls go, and wide."""
    step: dict[str, object] = {"type": "ByteFallback"}
    for _ in range(5000):
        step = {"type": "Sequence", "decoders": [step]}
    wide = {"type": "Sequence", "decoders": [step, *({"type": str(i)} for i in range(10**5))]}
    found = conversation.tokenizer_info({"decoder": wide})
    assert found["token_postproc_method"] == "byte_fallback"


def test_a_base_model_has_no_turns_and_its_texts_go_on() -> None:
    tokenizer = {**TOKENIZER, "added_tokens": []}  # not even the tokens around turns
    config = conversation.chat_template_config(
        vocab_size=1024,
        bos_token_id=2,
        eos_token_ids=[1],
        tokenizer=tokenizer,
        generation_config={},
        form=None,
    )
    template = conv_template(config)
    assert isinstance(template, dict)
    assert template["roles"] == {"user": "", "assistant": ""}
    assert template["system_template"] == "{system_message}"
    assert template["system_prefix_token_ids"] == [2]
    assert template["stop_token_ids"] == [1]
