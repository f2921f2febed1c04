"""Answers of `/v1/responses`: a whole response, or the events of its stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

from gemma4_compile.runtime.engine.generation import Generation
from gemma4_compile.runtime.reply.declared_values import as_declared
from gemma4_compile.runtime.reply.reply import Event, MarkIds, ReasoningDelta
from gemma4_compile.runtime.reply.tool_calls import ToolCall
from gemma4_compile.runtime.server.api_error import TOO_LONG, ApiError
from gemma4_compile.runtime.server.custom_tools import custom_text
from gemma4_compile.runtime.server.logprobs import ReplyLogprobs
from gemma4_compile.runtime.server.openai_responses.reasoning import ReasoningForm
from gemma4_compile.runtime.server.openai_responses.tools import ToolForm
from gemma4_compile.runtime.server.server_sent import named_event
from gemma4_compile.types import JsonObject

Keep = Callable[[JsonObject], None]
"""Takes the response once it has ended."""


class ResponseAnswer:
    """One response, item by item."""

    def __init__(
        self,
        model: str,
        echoed: Mapping[str, object],
        keep: Keep,
        *,
        note: str | None = None,
        tools: Sequence[Mapping[str, object]] = (),
        forms: Mapping[str, ToolForm] | None = None,
        logprobs: ReplyLogprobs | None = None,
        marks: MarkIds | None = None,
        reasoning: ReasoningForm | None = None,
    ) -> None:
        """Prepare.

        Parameters
        ----------
        echoed : fields of the request that the response repeats
        note : what the client should know, besides the answer; or None
        tools : declarations, whose types calls are given out with
        forms : functions that are other tools to the client, by their names
        logprobs : of the reply's tokens, if they are to be told
        marks : by which tokens of reasoning are counted
        reasoning : how it is given out; by default as content
        """
        self._model, self._echoed, self._keep, self._note = model, echoed, keep, note
        self._tools, self._logprobs, self._marks = tools, logprobs, marks
        self._forms, self._reasoning = forms or {}, reasoning or ReasoningForm()
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._number = 0
        self._done: list[JsonObject] = []
        self._open: JsonObject | None = None  # the item that is not done yet
        self._texts: list[str] = []  # of it

    def whole(self, events: Sequence[Event], generation: Generation) -> JsonObject:
        """The finished response, of events that are joined."""
        for event in events:
            for _ in self.push(event):
                pass
        for _ in self._close(_status(generation), generation):
            pass
        return self._finish(generation)

    def begin(self) -> Iterator[str]:
        """The response without items."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def push(self, event: Event) -> Iterator[str]:
        """More of an item; the beginning of the next where the kind is another one."""
        if isinstance(event, ToolCall):
            yield from self._call(as_declared(event, self._tools))
            return
        reasons = isinstance(event, ReasoningDelta)
        kind = "reasoning" if reasons else "message"
        if self._open is None or self._open["type"] != kind:
            yield from self._close("completed")
            yield from self._start(kind)
        self._texts.append(event.text)
        told: JsonObject = {} if reasons else {"logprobs": []}
        yield self._of_part(f"{self._names(kind)[1]}.delta", delta=event.text, **told)

    def pause(self) -> Iterator[str]:
        """Once more that it is in progress: clients with a limit of silence count events alone."""
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def end(self, generation: Generation) -> Iterator[str]:
        """The whole response."""
        yield from self._close(_status(generation), generation)
        response = self._finish(generation)
        yield self._event(f"response.{response['status']}", response=response)

    def refuse(self, error: ApiError) -> Iterator[str]:
        """It will not begin, as of a prompt that is too long.

        As OpenAI's servers tell it: Codex sums up what was said at the code of the last event, and
        OpenAI's own clients raise at the one before.
        """
        yield from self.begin()
        yield self._event("error", **error.body())
        yield from self.fail(error)

    def fail(self, error: ApiError) -> Iterator[str]:
        """It will not be whole."""
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        if error.code == TOO_LONG:
            code = TOO_LONG
        failed = {"error": {"code": code, "message": error.told}}
        yield self._event("response.failed", response=self._response("failed") | failed)

    def _start(self, kind: str) -> Iterator[str]:
        self._texts = []
        if kind == "reasoning":
            self._open = {"type": kind, "id": f"rs_{uuid.uuid4().hex}", "summary": []}
            part: JsonObject = {"type": self._reasoning.part, "text": ""}
        else:
            self._open = {"type": kind, "id": f"msg_{uuid.uuid4().hex}", "role": "assistant"}
            part = _output_text("")
        item = {**self._open, "status": "in_progress", "content": []}
        yield self._of_item("response.output_item.added", item)
        yield self._of_part(f"{self._names(kind)[0]}.added", part=part)

    def _close(self, status: str, generation: Generation | None = None) -> Iterator[str]:
        """End the item that is open."""
        if self._open is None:
            return
        kind, text = str(self._open["type"]), "".join(self._texts)
        of_part, of_text = self._names(kind)
        if kind == "reasoning":
            part: JsonObject = {"type": self._reasoning.part, "text": text}
            fields = self._reasoning.fields(text)
            yield self._of_part(f"{of_text}.done", text=text)
        else:
            told = self._told(generation)
            part = _output_text(text) | ({"logprobs": told} if self._logprobs else {})
            fields = {"content": [part]}
            yield self._of_part(f"{of_text}.done", text=text, logprobs=told)
        yield self._of_part(f"{of_part}.done", part=part)
        item = {**self._open, "status": status, **fields}
        yield self._of_item("response.output_item.done", item)
        self._done.append(item)
        self._open = None

    def _names(self, kind: str) -> tuple[str, str]:
        """What events of parts and of texts of an item are called."""
        if kind != "reasoning":
            return "response.content_part", "response.output_text"
        if self._reasoning.in_summary:
            return "response.reasoning_summary_part", "response.reasoning_summary_text"
        return "response.content_part", "response.reasoning_text"

    def _told(self, generation: Generation | None) -> list[object]:
        """Log probabilities of the answer's tokens; they stand in its last text, at the end."""
        if self._logprobs is None or generation is None:
            return []
        content = self._logprobs.chat(len(generation.token_ids))["content"]
        assert isinstance(content, list), "of `chat`"
        return content

    def _call(self, call: ToolCall) -> Iterator[str]:
        yield from self._close("completed")
        form = self._forms.get(call.name, ToolForm(call.name))
        kind, place, told = "function_call", "arguments", call.arguments_json()
        if form.is_custom:
            kind, place, told = "custom_tool_call", "input", custom_text(call)
        item: JsonObject = {
            "type": kind,
            "id": f"{'ctc' if form.is_custom else 'fc'}_{uuid.uuid4().hex}",
            "call_id": call.call_id or f"call_{uuid.uuid4().hex}",
            "name": form.name,
        }
        if form.namespace:
            item["namespace"] = form.namespace
        yield self._of_item(
            "response.output_item.added", {**item, place: "", "status": "in_progress"}
        )
        of_item = {"item_id": item["id"], "output_index": len(self._done)}
        kind = f"response.{kind}_{place}"
        yield self._event(f"{kind}.delta", **of_item, delta=told)
        yield self._event(f"{kind}.done", **of_item, name=form.name, **{place: told})
        item |= {place: told, "status": "completed"}
        yield self._of_item("response.output_item.done", item)
        self._done.append(item)

    def _finish(self, generation: Generation) -> JsonObject:
        status = _status(generation)
        texts = [item["content"] for item in self._done if item["type"] == "message"]
        if texts and (told := self._told(generation)):  # a call came after the last of them
            last = texts[-1]
            assert isinstance(last, list), "as it was closed"
            last[0]["logprobs"] = told
        response = self._response(status) | {"usage": self._usage(generation)}
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        self._keep(response)
        return response

    def _usage(self, generation: Generation) -> JsonObject:
        told, prompt = len(generation.token_ids), generation.prompt_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {
                "cached_tokens": generation.reused_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": told,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens(generation)},
            "total_tokens": prompt + told,
        }

    def _reasoning_tokens(self, generation: Generation) -> int:
        """Tokens between the marks of reasoning; without marks nobody can tell."""
        if self._marks is None or not generation.reasoning:
            return 0
        ids, marks = generation.token_ids, self._marks
        begun = marks.open_channel in ids
        count, inside = 0, not begun
        for token_id in ids:
            if token_id == marks.open_channel:
                inside = True
            elif token_id in (marks.close_channel, marks.open_call):
                inside = False
            else:
                count += inside
        return count

    def _response(self, status: str) -> JsonObject:
        response: JsonObject = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": list(self._done),
            "usage": None,
            **self._echoed,
        }
        return response if self._note is None else response | {"note": self._note}

    def _of_part(self, kind: str, **fields: object) -> str:
        assert self._open is not None, "an item is open"
        index = "summary_index" if ".reasoning_summary" in kind else "content_index"
        place = {"item_id": self._open["id"], "output_index": len(self._done), index: 0}
        return self._event(kind, **place, **fields)

    def _of_item(self, kind: str, item: JsonObject) -> str:
        return self._event(kind, output_index=len(self._done), item=item)

    def _event(self, kind: str, **fields: object) -> str:
        number, self._number = self._number, self._number + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})


def _output_text(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": []}


def _status(generation: Generation) -> str:
    return "completed" if generation.finish_reason == "stop" else "incomplete"
