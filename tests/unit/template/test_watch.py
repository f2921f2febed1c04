"""Renderings are ended, and what they make is the same as without a watch."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gemma4_compile.errors import UsageError
from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.template.watch import SlowRenderingError, Watch, watched

CUBIC = (
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}"
    "{% if c.role == 'x' %}y{% endif %}{% endfor %}{% endfor %}{% endfor %}z"
)
MANY = [Message("user", "a")] * 1000


def nothing() -> Callable[[str], None]:
    return lambda piece: None


def test_a_rendering_ends_after_its_time() -> None:
    with pytest.raises(SlowRenderingError, match=r"more than 0\.1 s"), watched(Watch(0.1), nothing):
        ChatTemplate(CUBIC, {}).render(MANY)


def test_another_thread_ends_a_rendering() -> None:
    watch = Watch()
    timer = threading.Timer(0.2, watch.cancel)
    timer.start()
    with pytest.raises(SlowRenderingError, match="cancelled"), watched(watch, nothing):
        ChatTemplate(CUBIC, {}).render(MANY)
    timer.join()


def test_a_text_is_seen_while_it_grows() -> None:
    template = ChatTemplate(
        "{% macro m(x) %}[{{ x }}]{% endmacro %}{% for a in messages %}{{ m(a.content) }}"
        "{% endfor %}{% set s %}block{% endset %}{{ s }}",
        {},
    )
    pieces: list[str] = []
    with watched(Watch(characters=100), lambda: pieces.append):
        text = template.render([Message("user", "a")] * 3)
    assert text == "".join(pieces) == "[a][a][a]block"
    with pytest.raises(SlowRenderingError, match="more than 10"), watched(Watch(None, 10), nothing):
        template.render([Message("user", "a")] * 3)

    def refuse(piece: str) -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match=r"^no$"), watched(Watch(), lambda: refuse):
        template.render([Message("user", "a")])
    with watched(Watch(), nothing), pytest.raises(UsageError, match="refuses this conversation"):
        ChatTemplate("{{ raise_exception('no') }}", {}).render(MANY)


def test_namespaces_are_as_in_jinja() -> None:
    source = (
        "{% set ns = namespace(text='a', n=1, flag=true, none=none, items=[1]) %}"
        "{{ ns.text }}{{ ns.n }}{{ ns.flag }}{{ ns.none }}{{ ns.items }}{{ ns.absent is defined }}"
        "{{ ns.__class__ }}{{ ns._Namespace__attrs }}{{ ns.text.format('x') }}"
    )
    assert ChatTemplate(source, {}).render(MANY[:1]) == "a1TrueNone[1]Falsea"
