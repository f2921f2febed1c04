"""What chat templates can use, against the environment of the pinned transformers."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.template import environment as template_environment
from gemma4_compile.template.chat_template import ChatTemplate, special_tokens
from gemma4_compile.tiny.checkpoint import TOKENIZER_FILES, shipped_file

pytestmark = pytest.mark.parity

ASKED = [Message("user", "hi")]
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "é <b>&'\" \u2028 😀",
        "parameters": {"type": "object", "properties": {"b": {}, "a": {"default": 1e400}}},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    for name in TOKENIZER_FILES:
        (folder / name).write_bytes(shipped_file(name))
    return folder


def theirs(folder: Path, template: str, messages: list[Message], **options: Any) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = [message.for_template() for message in messages]
    return str(
        tokenizer.apply_chat_template(
            plain,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=True,
            **options,
        )
    )


def ours(folder: Path, template: str, messages: list[Message], **options: Any) -> str:
    tokens = special_tokens(json.loads((folder / "tokenizer_config.json").read_text()))
    return ChatTemplate(template, tokens).render(messages, **options)


def test_everything_that_transformers_offers_is_there() -> None:
    environment = chat_template_utils._compile_jinja_template("x").environment
    own = template_environment.new_environment()
    for kind in ("filters", "tests", "globals"):
        assert getattr(own, kind).keys() == getattr(environment, kind).keys(), kind
    tags = [{tag for one in e.extensions.values() for tag in one.tags} for e in (own, environment)]
    assert tags[0] == tags[1]
    for setting in ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape"):
        assert getattr(own, setting) == getattr(environment, setting), setting
    assert own.undefined is environment.undefined
    # What differs from Jinja's own: replaced there, replaced here.
    for kind in ("filters", "globals"):
        plain = getattr(type(own)(), kind)
        replaced = [
            {name for name, value in getattr(e, kind).items() if plain.get(name) is not value}
            for e in (own, environment)
        ]
        fresh = {name for name in replaced[0] if name in ("cycler", "joiner", "lipsum", "range")}
        assert replaced[0] - fresh == replaced[1] - fresh, kind


TEMPLATES = {
    **{
        f"tojson({options})": f"{{{{ tools | tojson({options}) }}}}"
        for options in (
            *("", "indent=2", "separators=(',', ':')", "sort_keys=true", "ensure_ascii=true"),
            *("false, 2", "true, none, (',', ':'), true", "indent='\t'", "false, 0"),
        )
    },
    "tojson of numbers": "{{ [1.5, 1e100, 1e400, true, none, -0.0] | tojson }}",
    "generation": "{{ bos_token }}{% generation %}{{ messages[0].content }}{% endgeneration %}!",
    "generation in a loop": (
        "{% for m in messages %}\n  {%- generation -%}\n{{ m.content }}\n{%- endgeneration %}\n"
        "{% endfor %}"
    ),
    "loop controls": "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}"
    "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "every token": "{{ [bos_token, eos_token, unk_token, pad_token, mask_token, sep_token] }}",
    "variables": "{{ [tools is none, documents is none, documents is defined, "
    "add_generation_prompt, enable_thinking is defined] }}",
    "thinking unless told otherwise": "{{ enable_thinking | default(true) }}",
    "undefined": "<{{ nothing }}><{{ messages[0].nothing }}>{{ nothing is defined }}",
    "namespace": "{% set ns = namespace(a=1, self=2) %}{% set ns.a = 3 %}{{ ns.a }}{{ ns.self }}",
    "dict": "{{ dict(a=1, b=2) }}{{ dict.fromkeys(['x'], 3) }}",
    "blocks": "a\n  {% if true %}\n  b\n  {% endif %}\n{{ 'c' }}\n",
    "date": "{{ strftime_now('%Y') }}",
    "html": "{{ '<b>&' }}{{ '<b>&' | e }}",
    "methods": "{{ 'a,b'.split(',') }}{{ {'a': 1}.items() | list }}{{ messages[0].get('x', 'y') }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_makes_the_same_text(name: str, folder: Path) -> None:
    template, options = TEMPLATES[name], {"tools": [TOOL]} if "tojson" in name else {}
    found = ours(folder, template, ASKED, **options)
    assert found == theirs(folder, template, ASKED, **options)


@pytest.mark.parametrize("field", ["thinking", "reasoning_content"])
def test_reasoning_has_both_names(field: str, folder: Path) -> None:
    replied = [*ASKED, Message("assistant", "b", reasoning="because"), *ASKED]
    template = f"{{% for m in messages %}}[{{{{ m.{field} }}}}]{{% endfor %}}"
    assert ours(folder, template, replied) == theirs(folder, template, replied) == "[][because][]"


REFUSED = (
    "{{ raise_exception('no') }}",
    "{{ ''.__class__.__mro__ }}",
    "{% set ns = namespace(_a=1) %}x",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}x",
    "{{ messages.append(1) }}",
    "{{ {1: 2} | tojson(none, none, none, none, none) }}",
)


@pytest.mark.parametrize("template", REFUSED)
def test_what_transformers_refuses_is_refused(template: str, folder: Path) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 (of each cause its own)
        theirs(folder, template, ASKED)
    with pytest.raises(UsageError, match="refuses this conversation"):
        ours(folder, template, ASKED)


def test_the_date_is_of_now(folder: Path) -> None:
    before = datetime.datetime.now().year
    found = int(ours(folder, "{{ strftime_now('%Y') }}", ASKED))
    assert before <= found <= datetime.datetime.now().year


TOKEN_CONFIGS: dict[str, dict[str, Any]] = {
    "sep and cls": {"sep_token": "<sep>", "cls_token": "<cls>"},
    "names of the model": {
        "boi_token": "<|image>",
        "image_token": "<|image|>",
        "add_x_token": True,
    },
    "named extra tokens": {"extra_special_tokens": {"audio_token": "<|audio|>", "other": "<x>"}},
    "extra tokens without names": {"extra_special_tokens": ["<|video|>"]},
    "additional tokens": {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]},
    "tokens of the model, listed": {"model_specific_special_tokens": {"soc_token": "<soc>"}},
    "a token with its properties": {
        "bos_token": {"__type": "AddedToken", "content": "<bos>", "special": True}
    },
    "the class names them": {
        "tokenizer_class": "GemmaTokenizer",
        **dict.fromkeys(("bos_token", "eos_token", "pad_token", "mask_token"), ...),
    },
    "none": {"bos_token": None},
    "the class names them, but for one": {"tokenizer_class": "GemmaTokenizer", "bos_token": None},
}


@pytest.mark.parametrize("name", TOKEN_CONFIGS)
def test_special_tokens_are_those_of_transformers(name: str, folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    for key, value in TOKEN_CONFIGS[name].items():
        if value is ...:
            del config[key]
        else:
            config[key] = value
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    truth = AutoTokenizer.from_pretrained(tmp_path).special_tokens_map
    assert special_tokens(config) == truth
