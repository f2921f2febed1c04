"""What lists tell of a model."""

from __future__ import annotations

import pytest

from gemma4_compile.runtime.server.cards import ModelCard, card_list, card_object
from gemma4_compile.template.chat_template import ChatTemplate

TEMPLATE = "{%- if tools %}{{ tools }}{% endif %}{% if enable_thinking %}think{% endif -%}"


@pytest.mark.parametrize(
    ("template", "sees", "expected"),
    [
        (None, False, ("completion",)),
        ("{{ messages }}", True, ("completion", "vision")),
        (TEMPLATE, True, ("completion", "tools", "thinking", "vision")),
    ],
)
def test_capabilities_are_what_the_template_reads_and_what_is_taken(
    template: str | None, sees: bool, expected: tuple[str, ...]
) -> None:
    read = None if template is None else ChatTemplate(template, {})
    assert ModelCard.of("a", 512, read, sees=sees).capabilities == expected


def test_lists_have_the_form_of_who_asks() -> None:
    cards = [ModelCard(name, 512, ()) for name in "abc"]
    plain = card_list([card_object(card, {}) for card in cards], {})
    assert plain["object"] == "list"
    headers = {"anthropic-version": "2023-06-01"}
    other = card_list([card_object(card, headers) for card in cards], headers)
    assert (other["first_id"], other["last_id"], other["has_more"]) == ("a", "c", False)
