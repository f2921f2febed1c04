from __future__ import annotations

import json
from random import Random

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.template.chat_template import ChatTemplate
from gemma4_compile.tiny import checkpoint
from tools.training.tiny.further import using_tools
from tools.training.tiny.tools import ASK, PAGE_CALCULATOR, make_tool


def test_text_is_what_the_chat_template_renders() -> None:
    source = checkpoint.shipped_file("chat_template.jinja").decode()
    template = ChatTemplate(source, {"bos_token": "<bos>"})
    used = 0
    for seed in range(60):
        dialogue = using_tools(Random(seed), False)
        messages = [] if dialogue.system is None else [Message("system", dialogue.system)]
        for turn in dialogue.turns:
            messages.append(Message("user", turn.user))
            if turn.use is not None:
                used += 1
                calls = (ToolCall(turn.use.name, turn.use.arguments, str(used)),)
                messages.append(Message("assistant", "", tool_calls=calls))
                messages.append(Message("tool", turn.use.result, tool_call_id=str(used)))
            messages.append(Message("assistant", turn.answer))
        rendered = template.render(messages, tools=[tool.declared() for tool in dialogue.tools])
        assert dialogue.text() == rendered.removesuffix("<|turn>model\n")
    assert used > 30


def test_calculators_are_right_and_their_results_are_told() -> None:
    rng = Random(1)
    for _ in range(300):
        asked = ASK["expression"](rng, PAGE_CALCULATOR)
        expression, result = asked.use.arguments["expression"], asked.use.result
        assert isinstance(expression, str)
        if result.startswith("error"):
            assert expression.endswith("/ 0")
            continue
        assert abs(eval(expression) - float(result)) <= 1e-12 * max(1.0, abs(float(result)))
        assert asked.answer.endswith(f" is {result}.")


def test_the_declaration_is_json() -> None:
    for kind in ASK:
        tool = make_tool(Random(2), kind)
        assert json.loads(json.dumps(tool.declared()))["function"]["name"] == tool.name
