"""The form in which templates read messages, found by trying."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny.checkpoint import shipped_file

SAID = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes")]
SAID += [Message("user", ""), Message("tool", "7")]
LOOP = "{% for m in messages %}[{{ m.role }}:%s]{% endfor %}"
EVERY_PART = "{% for p in m.content %}{{ p.text }}{% endfor %}"
TEXT_PARTS = (
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p['text'] }}{% endif %}{% endfor %}"
)
EXPECTED = "[system:Be brief.][user:Hi][assistant:Yes][user:][tool:7]"


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content }}",
        EVERY_PART,
        TEXT_PARTS,
        "{{ m.content[0]['text'] }}",
        "{% if m.content is string %}{{ m.content }}{% else %}" + EVERY_PART + "{% endif %}",
        # Of some roles alone.
        "{% if m.role == 'user' %}" + EVERY_PART + "{% else %}{{ m.content }}{% endif %}",
        "{% if m.role == 'system' %}" + TEXT_PARTS + "{% else %}{{ m.content }}{% endif %}",
        "{% if m.role == 'tool' %}" + TEXT_PARTS + "{% else %}{{ m.content }}{% endif %}",
    ],
)
def test_every_text_is_in_the_prompt(content: str) -> None:
    assert ChatTemplate(LOOP.replace("%s", content), {}).render(SAID) == EXPECTED


def test_a_template_that_refuses_a_text_gets_parts() -> None:
    strict = "{% if m.content is string %}{{ raise_exception('no') }}{% endif %}" + EVERY_PART
    assert ChatTemplate(LOOP.replace("%s", strict), {}).render(SAID) == EXPECTED


def test_a_template_of_texts_gets_texts() -> None:
    """As it did, and as transformers' users write them."""
    template = ChatTemplate("{{ messages[0].content is string }}{{ messages[0].content }}", {})
    assert template.render(SAID[1:2]) == "TrueHi"
    shipped = ChatTemplate(shipped_file("chat_template.jinja").decode(), {"bos_token": "<bos>"})
    assert "Be brief." in shipped.render(SAID[:2])


def test_a_developer_is_a_system() -> None:
    template = ChatTemplate(LOOP.replace("%s", EVERY_PART), {})
    assert template.render([Message("developer", "Be brief.")]) == "[developer:Be brief.]"


def test_each_of_two_templates_has_its_own_form() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, LOOP.replace("%s", EVERY_PART))
    assert template.render(SAID[1:2]) == "Hi"
    assert template.render(SAID[1:2], tools=[{}]) == "[user:Hi]"
