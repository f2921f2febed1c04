"""Content blocks of `/v1/messages`: turns of blocks in, messages of the chat out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from gemma4_compile.runtime.prompt.prompt import Message
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.anthropic import asks
from gemma4_compile.runtime.server.call_arguments import read_arguments
from gemma4_compile.runtime.server.conversation import Conversation, Part, in_lines
from gemma4_compile.runtime.server.fields import Fields
from gemma4_compile.runtime.server.foreign_tools import in_words, leave_out
from gemma4_compile.runtime.server.media import GivenMedium
from gemma4_compile.runtime.server.messages import called_name

_ROLES = ("user", "assistant", "system")
_BLOCK = {"cache_control", "type"}
_FOREIGN_CALLS = ("mcp_tool_use", "server_tool_use")
_SAID = ("document", "image", "search_result", "text")
_FILES = ("base64", "file", "url")  # sources of documents whose text is not in the request
# What Claude Code writes before all else for Anthropic's bills, whose servers take it out. It is
# another one in each request: nothing that was kept of the prompt before would be found again.
_OF_BILLING = re.compile(r"x-anthropic-billing-header:([ \t]*[\w-]+=[^;\n]*;)*[ \t]*\n?")


def read_conversation(fields: Fields, most: int) -> tuple[Conversation, str]:
    """Read `system` and `messages`; ApiError names the block that cannot be served.

    Turns of one role that follow each other are one, as the protocol has it.

    Returns
    -------
    the conversation, and the text of a last turn of the model: what the reply begins with
    """
    entries = fields.need("messages", list)
    if not 1 <= len(entries) <= most:
        raise fields.error("messages", f"expected 1 to {most} messages, found {len(entries)}")
    conversation = Conversation()
    if fields.has("system") and (system := _system(fields)):
        conversation.add(Message("system", ""), system)
    turns = [_turn(fields.inner(f"messages[{i}]", entry)) for i, entry in enumerate(entries)]
    turns = turns[max((i for i, (_, turn) in enumerate(turns) if _is_compacted(turn)), default=0) :]
    begun = ""
    grouped = [(role, [turn for _, turn in one]) for role, one in groupby(turns, lambda t: t[0])]
    for index, (role, same) in enumerate(grouped):
        if role == "assistant":
            is_last = index + 1 == len(grouped)
            message = _read_model(same, conversation, is_last=is_last)
            if is_last:
                begun = _begun(same[-1], message)
                break
            is_said = message != Message("assistant", "")
            if is_said or not (_ends_with_result(conversation) or any(map(_is_compacted, same))):
                conversation.add(message)
        elif role == "user":
            _add_users(same, conversation)
        else:
            conversation.add(
                Message(role, ""), in_lines(t for turn in same for t in _texts(turn, "content"))
            )
    if begun and not conversation.messages:
        raise fields.error("messages", "expected a message before the one that begins the reply")
    return conversation, begun


def _turn(fields: Fields) -> tuple[str, Fields]:
    fields.skip_unknown({"content", "role"}, {})
    role = fields.need("role", str)
    if role not in _ROLES:
        raise fields.error("role", f"expected user, assistant or system, found {role!r}")
    return role, fields


def _is_compacted(turn: Fields) -> bool:
    """Return whether a turn holds the summary of all before it, which stands in its place."""
    blocks = turn.raw("content")
    return isinstance(blocks, list) and any(
        isinstance(block, Mapping) and block.get("type") == "compaction" and block.get("content")
        for block in blocks
    )


def _begun(last: Fields, message: Message) -> str:
    if message.tool_calls:
        raise last.error("content", "expected `tool_result` after the calls of tools")
    if message.reasoning and message.content:
        raise last.error("content", "the reply that is begun holds text alone, and no thinking")
    return message.content


def _blocks(fields: Fields, name: str) -> list[Fields]:
    """Blocks of a field; a text alone is one of them."""
    content = fields.raw(name)
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif content is None:
        raise fields.error(name, "is missing", code="missing_field")
    elif not isinstance(content, list):
        raise fields.error(name, "expected a text or a list of blocks")
    return [fields.inner(f"{name}[{i}]", block) for i, block in enumerate(content)]


def _system(fields: Fields) -> list[Part]:
    """The text of `system`, without the header that is no part of the prompt."""
    parts = _texts(fields, "system")
    if parts and isinstance(parts[0], str) and (header := _OF_BILLING.match(parts[0])):
        fields.ignored.add("system: x-anthropic-billing-header")
        parts = [parts[0][header.end() :], *parts[1:]]
    return [part for part in parts if part]


def _texts(fields: Fields, name: str) -> list[Part]:
    """The text of a field whose blocks are texts."""
    parts: list[Part] = []
    for block in _blocks(fields, name):
        if block.need("type", str) != "text":
            raise _unserved(block, "text")
        parts.append(_text(block))
    return in_lines(parts)


def _text(block: Fields) -> str:
    block.skip_unknown(_BLOCK | {"citations", "text"}, {})
    text: str = block.need("text", str)
    return text


def _read_model(turns: Sequence[Fields], conversation: Conversation, *, is_last: bool) -> Message:
    """Read turns of the model; steps before the last are added.

    A step ends with results of tools that another server ran: they are in the model's own turn.
    """
    blocks = [block for turn in turns for block in _blocks(turn, "content")]
    answered = {str(b.raw("tool_use_id")) for b in blocks if _is_foreign_result(b)}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []

    def step() -> Message:
        message = Message(
            "assistant",
            "".join(texts),
            reasoning="\n".join(filter(None, thoughts)) or None,
            tool_calls=tuple(calls),
        )
        for done in (texts, thoughts, calls):
            done.clear()
        return message

    for block in blocks:
        kind = block.need("type", str)
        if kind == "text":
            texts.append(_text(block))
        elif kind == "thinking":
            block.skip_unknown(_BLOCK | {"signature", "thinking"}, {})
            thoughts.append(block.get("thinking", str, ""))
        elif kind == "redacted_thinking":
            block.ignored.add(block.name("data"))
        elif kind == "compaction":  # null, where the summary failed: all is as it was
            block.skip_unknown(_BLOCK | {"content", "encrypted_content"}, {})
            if summary := block.get("content", str, ""):
                for before in (texts, thoughts, calls):
                    before.clear()
                conversation.add(Message("user", ""), [summary])
        elif kind == "tool_use":
            block.skip_unknown(_BLOCK | {"caller", "id", "input", "name"}, {})
            calls.append(_call(block))
        elif kind in _FOREIGN_CALLS and (str(block.raw("id")) in answered or not is_last):
            if str(block.raw("id")) in answered:
                calls.append(_call(block))
            else:
                leave_out(block)
        elif _is_foreign_result(block):
            if texts or thoughts or calls:
                conversation.add(step())
            _add_foreign_result(block, conversation)
        else:
            raise _unserved(block, "text, thinking or tool_use")
    return step()


def _call(block: Fields) -> ToolCall:
    call_id, name = block.need("id", str), called_name(block)
    return ToolCall(name, read_arguments(block, "input"), call_id)


def _is_foreign_result(block: Fields) -> bool:
    return str(block.raw("type")).endswith("_tool_result")


def _add_foreign_result(block: Fields, conversation: Conversation) -> None:
    """Add what a tool found that another server ran."""
    content = block.raw("content")
    entries = content if isinstance(content, list) else [content]
    parts: list[Part] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, str):
            parts.append(entry)
        elif entry is not None:
            parts += _found(block.inner(f"content[{index}]", entry))
    _answer(block, parts, conversation)


def _found(entry: Fields) -> list[Part]:
    if str(entry.raw("type")) in _SAID:
        return _part(entry)
    document = entry.raw("content")
    if isinstance(document, Mapping) and document.get("type") == "document":  # of an address
        address, inner = entry.get("url", str, ""), entry.inner("content", document)
        source = document.get("source")
        if isinstance(source, Mapping) and source.get("type") in ("content", "text"):
            return [address, *_document(inner)]
        leave_out(inner)
        return [address]
    values = {name: entry.raw(name) for name in entry.names()}
    return [in_words(values)]


def _add_users(turns: Sequence[Fields], conversation: Conversation) -> None:
    """Add results of tools right after their calls, as templates want them, then the rest."""
    parts: list[Part] = []
    for block in (block for turn in turns for block in _blocks(turn, "content")):
        if block.need("type", str) == "tool_result":
            _add_result(block, conversation)
        else:
            parts += _part(block)
    joined = in_lines(parts)
    if joined or not _ends_with_result(conversation):
        conversation.add(Message("user", ""), joined)


def _ends_with_result(conversation: Conversation) -> bool:
    return any(message.role == "tool" for message in conversation.messages[-1:])


def _add_result(block: Fields, conversation: Conversation) -> None:
    block.skip_unknown(_BLOCK | {"content", "is_error", "tool_use_id"}, {})
    blocks = _blocks(block, "content") if block.has("content") else []
    _answer(block, [part for one in blocks for part in _shown(one)], conversation)


def _shown(block: Fields) -> list[Part]:
    """What a client's tool found; in words, where nobody here can read it.

    An agent sends it in every request from then on: refused, the conversation would be at its end.
    """
    kind, source = block.need("type", str), block.raw("source")
    if kind == "tool_reference":  # found by a search among the client's tools, all of them declared
        block.skip_unknown(_BLOCK | {"tool_name"}, {})
        return [block.need("tool_name", str)]
    is_file = isinstance(source, Mapping) and source.get("type") in _FILES
    if kind != "document" or not is_file or block.ignored.strict:
        return _part(block)
    block.skip_unknown(_BLOCK | {"context", "source", "title"}, asks.DOCUMENT)
    block.ignored.add("documents of tools, which the model is told of in words")
    return [block.get("title", str, ""), "(A document, which you cannot read.)"]


def _answer(block: Fields, parts: list[Part], conversation: Conversation) -> None:
    call_id = block.need("tool_use_id", str)
    if call_id not in conversation.calls:
        message = f"expected the id of a `tool_use` before it, found {call_id[:60]!r}"
        raise block.error("tool_use_id", message)
    if block.get("is_error", bool, False):  # the template has no other place for it
        parts = ["Error:", *parts]
    conversation.add(Message("tool", "", tool_call_id=call_id), in_lines(parts))


def _part(block: Fields) -> list[Part]:
    """What a user or a tool says."""
    kind = block.need("type", str)
    if kind == "text":
        return [_text(block)]
    if kind == "image":
        return [_image(block)]
    if kind == "document":
        return _document(block)
    if kind == "search_result":
        block.skip_unknown(_BLOCK | {"content", "source", "title"}, asks.DOCUMENT)
        return [
            block.get("title", str, ""),
            block.get("source", str, ""),
            *_texts(block, "content"),
        ]
    raise _unserved(block, "text, image, document, search_result or tool_result")


def _image(block: Fields) -> GivenMedium:
    block.skip_unknown(_BLOCK | {"source"}, asks.IMAGE)
    source = block.inner("source", block.need("source", dict))
    kind = source.need("type", str)
    source.skip_unknown({"data", "media_type", "type", "url"}, {})
    if kind == "base64":
        # The data decide what they are, not `media_type`.
        data = source.need("data", str)
        return GivenMedium("image", source.name("data"), f"data:;base64,{data}")
    if kind == "url":
        return GivenMedium("image", source.name("url"), source.need("url", str))
    raise source.error("type", "expected base64 or url", code="unsupported_value")


def _document(block: Fields) -> list[Part]:
    block.skip_unknown(_BLOCK | {"context", "source", "title"}, asks.DOCUMENT)
    source = block.inner("source", block.need("source", dict))
    kind = source.need("type", str)
    source.skip_unknown({"content", "data", "media_type", "type"}, {})
    about: list[Part] = [block.get("title", str, ""), block.get("context", str, "")]
    if kind == "text":
        return [*about, source.need("data", str)]
    if kind == "content":
        return [*about, *(part for one in _blocks(source, "content") for part in _said(one))]
    why = "expected text or content: files are not read, send what they say"
    raise source.error("type", why, code="unsupported_value")


def _said(block: Fields) -> list[Part]:
    """What a document holds: texts and pictures, and no documents."""
    if block.need("type", str) not in ("image", "text"):
        raise _unserved(block, "text or image")
    return _part(block)


def _unserved(block: Fields, expected: str) -> Exception:
    found = str(block.raw("type"))[:60]
    return block.error("type", f"expected {expected}, found {found!r}", code="unsupported_value")
