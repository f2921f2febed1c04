"""Holds a reply to a JSON schema, token by token, with the `llguidance` library (an extra).

The library runs in processes of their own under limits (`confined.schemas`): a schema is a
stranger's text, and some make the library crash or take all memory.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from gemma4_compile.confined import schemas
from gemma4_compile.errors import Gemma4CompileError, UsageError
from gemma4_compile.runtime.grammar.call_grammar import call_grammar
from gemma4_compile.runtime.grammar.call_schema import FORMATS
from gemma4_compile.runtime.grammar.call_schema_merge import TYPES, SchemaReader
from gemma4_compile.runtime.grammar.property_names import without_property_names
from gemma4_compile.runtime.grammar.schema_process import (
    SchemaProcess,
    SchemaRefused,
    SchemaServer,
    SchemaServerError,
)
from gemma4_compile.runtime.grammar.unique_items import without_unique_items
from gemma4_compile.runtime.prompt.literal_specials import control_tokens
from gemma4_compile.runtime.reply.reply import MarkIds
from gemma4_compile.runtime.sampling.sampling import Float32Array, PromptReader, TokenChooser

INSTALL = "pip install 'gemma4-compile[json]'"
MAX_SCHEMA_BYTES = 256 << 10
MAX_NUMBER = 2**63
MAX_DIVISOR = 1_000_000  # the library counts remainders: one state of a machine for each
MIN_ARGUMENT, MAX_ARGUMENT = 16, 4096  # characters of a string among a call's arguments
_ARGUMENTS = 8  # of the longest kind have room in a reply
_PLAIN_HINT = "leave out what it names, or ask for the same in plainer words of JSON schema"
_NAMED_KEYS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_DATA_KEYS = ("const", "default", "enum", "examples")  # what they hold is no schema


class GrammarError(Gemma4CompileError):
    """The grammar engine gave up, for instance at a schema that grows too complex."""


class Grammars:
    """Compiles JSON schemas for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, stop_ids: Sequence[int]) -> None:
        """Prepare; the tokenizer is read when the first schema comes.

        Parameters
        ----------
        vocab_size : length of the logits
        stop_ids : tokens that end a reply
        """
        self._marks = MarkIds.of(tokenizer)
        self._has_stops = bool(stop_ids)
        control = list(control_tokens(tokenizer))
        self._server = SchemaServer(tokenizer.to_str, vocab_size, stop_ids, control)

    def compile(self, schema: Mapping[str, object]) -> JsonGrammar:
        """Compile a schema; whitespace between its parts is left out.

        Raises
        ------
        UsageError
            If llguidance is not installed, or cannot follow the schema within its limits.
        """
        self._check_end()
        _find_library("JSON schemas")
        _checked(schema)
        plain = json.dumps(_plain_answer(schema)).encode()
        return JsonGrammar(self._server, plain, schemas.SCHEMA, self._marks)

    def compile_calls(
        self,
        tools: Sequence[Mapping[str, object]],
        *,
        several: bool = True,
        room: int | None = None,
        answer: Mapping[str, object] | None = None,
    ) -> JsonGrammar:
        """Compile a grammar of calls of these tools; errors as of `compile`.

        Parameters
        ----------
        tools : declarations; one without parameters takes none
        several : whether more calls may follow the first
        room : tokens that the reply may have; None lets strings and lists have any length
        answer : the schema of a reply that may do without calls; None: it must call
        """
        self._check_end()
        _find_library("calls that follow their declarations")
        for tool in tools:
            _checked(tool, "the tools' declarations")
        tools = [_plain_tool(tool) for tool in tools]
        if answer is not None:
            _checked(answer)
            answer = _plain_answer(answer)
        longest = None if room is None else max(MIN_ARGUMENT, min(MAX_ARGUMENT, room // _ARGUMENTS))
        try:
            grammar = call_grammar(
                tools, self._marks, several=several, longest_text=longest, answer=answer
            )
        except RecursionError as error:  # of values that are listed, which nothing else goes into
            raise _refused("it is nested too deep", "the tools' declarations") from error
        if len(grammar) > MAX_SCHEMA_BYTES:
            raise UsageError(
                f"the tools' declarations cannot be followed: their grammar has {len(grammar)} "
                f"characters, and at most {MAX_SCHEMA_BYTES} are served",
                hint="declare fewer tools, or with fewer and shorter values to choose from",
            )
        return JsonGrammar(self._server, grammar.encode(), schemas.LARK, self._marks)

    def close(self) -> None:
        """End the processes."""
        self._server.close()

    def _check_end(self) -> None:
        if not self._has_stops:
            raise UsageError(
                "no token ends this package's replies, so none can be held to a schema",
                hint="name one as `eos_token_id` in the checkpoint's generation_config.json, and "
                "compile the package again",
            )


def is_installed() -> bool:
    """Return whether the library is there."""
    return importlib.util.find_spec("llguidance") is not None


def _find_library(what: str) -> None:
    if not is_installed():
        raise UsageError(
            f"{what} need the package `llguidance`, which is not installed",
            hint=f"run `{INSTALL}`",
        )


def _checked(schema: Mapping[str, object], what: str = "the JSON schema") -> bytes:
    """Return a schema as JSON; UsageError for what costs too much to be tried."""
    try:
        text = json.dumps(schema, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise _refused(f"it is no JSON: {error}", what) from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise _refused(f"it has {len(text)} bytes, and at most {MAX_SCHEMA_BYTES} are served", what)
    waiting: list[tuple[str, object, bool]] = [("", schema, True)]
    while waiting:
        key, value, is_schema = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(k, v, is_schema and k not in _DATA_KEYS) for k, v in value.items()]
        elif isinstance(value, list):
            waiting += [("", item, is_schema) for item in value]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if abs(value) > MAX_NUMBER:
                raise _refused(f"expected numbers up to 2**63, found {_shown(value)}", what)
            if is_schema and key == "multipleOf" and not 0 < value <= MAX_DIVISOR:
                raise _refused(
                    f"`multipleOf`: expected more than 0 and up to {MAX_DIVISOR}, found {value}",
                    what,
                )
    return text


def _plain_tool(tool: Mapping[str, object]) -> Mapping[str, object]:
    """A declaration whose parameters are plain."""
    function = tool["function"]
    assert isinstance(function, Mapping), "a declaration as `read_tools` returns it"
    parameters = function.get("parameters")
    if not isinstance(parameters, Mapping):
        return tool
    what = "the tools' declarations"
    return {**tool, "function": {**function, "parameters": _plain(parameters, what)}}


def _plain_answer(schema: Mapping[str, object]) -> dict[str, object]:
    """The schema of a reply: what the library has no word for is said in others."""
    named = _plain(schema, spell_out=lambda part: without_property_names(part, schema))
    reader = SchemaReader(named, _refused)
    return _plain(named, spell_out=lambda part: without_unique_items(part, reader))


def _plain(
    schema: Mapping[str, object],
    what: str = "the JSON schema",
    spell_out: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda part: part,
) -> dict[str, object]:
    """A schema with its types in small letters, and formats that the library knows alone.

    Google's own API writes `OBJECT` and `STRING`. pydantic writes the formats `password` and
    `binary`, OpenAPI `byte`: they are notes for people, and say nothing that is checked. What is
    not there programs in Go write as null, and those in PHP write no properties as a list.

    Raises
    ------
    UsageError
        If it is nested too deep for that.
    """

    def plain(value: object) -> object:
        if isinstance(value, list):
            return [plain(each) for each in value]
        return whole(value) if isinstance(value, Mapping) else value

    def whole(part: Mapping[str, object]) -> dict[str, object]:
        kept: dict[str, object] = {}
        for key, value in spell_out(part).items():
            if key in _DATA_KEYS and (value is not None or key != "enum"):
                kept[key] = value
            elif value is None or (key in _NAMED_KEYS and value == []):
                continue
            elif key in _NAMED_KEYS and isinstance(value, Mapping):
                kept[key] = {name: plain(inner) for name, inner in value.items()}
            elif key == "type":
                kept[key] = (
                    [*map(_type_word, value)] if isinstance(value, list) else _type_word(value)
                )
            elif key != "format" or not isinstance(value, str) or value in FORMATS:
                kept[key] = plain(value)
        return kept

    try:
        return whole(schema)
    except RecursionError as error:
        raise _refused("it is nested too deep", what) from error


def _type_word(said: object) -> object:
    """A type of JSON schema in the letters that it has there; anything else as it is."""
    return said.lower() if isinstance(said, str) and said.lower() in TYPES else said


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else f"an integer of {value.bit_length()} bits"


def _refused(why: str, what: str = "the JSON schema") -> UsageError:
    return UsageError(f"{what} cannot be followed: {why}", hint=_PLAIN_HINT)


class JsonGrammar:
    """A compiled schema, or a grammar of calls."""

    def __init__(self, server: SchemaServer, schema: bytes, kind: bytes, marks: MarkIds) -> None:
        """Compile; errors as in `Grammars.compile`."""
        self._server, self._schema, self._kind, self._marks = server, schema, kind, marks
        self._ready: SchemaProcess | None = self._compile()

    def constrain(
        self, chooser: TokenChooser, *, thinking: bool = False, only_calls: bool = False
    ) -> TokenChooser:
        """A chooser for one reply that takes only what the schema allows.

        Parameters
        ----------
        chooser : chooses among what is allowed
        thinking : let the reply begin with reasoning, in which everything is allowed
        only_calls : everything is allowed between calls as well
        """
        process, self._ready = self._ready or self._compile(), None
        return _Constrained(process, chooser, self._marks, thinking, only_calls)

    def _compile(self) -> SchemaProcess:
        try:
            return self._server.follow(self._schema, self._kind)
        except (SchemaRefused, SchemaServerError) as error:
            what = "the JSON schema" if self._kind == schemas.SCHEMA else "the declarations"
            raise _refused(str(error), what) from error


class _Constrained:
    """Chooses the tokens of one reply."""

    def __init__(
        self,
        process: SchemaProcess,
        chooser: TokenChooser,
        marks: MarkIds,
        thinking: bool,
        only_calls: bool,
    ) -> None:
        self._process, self._chooser, self._marks = process, chooser, marks
        self._may_think = thinking and marks.open_channel is not None
        self._in_reasoning = False
        self._only_calls = self._is_free = only_calls
        self._allowed: npt.NDArray[np.bool_] | None = None  # what may come next, once it is known
        self._last: int | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        """Hear what the reply goes on from; pass it on to a chooser that counts."""
        self._in_reasoning = self._marks.reasoning_is_open(list(prompt))
        if isinstance(self._chooser, PromptReader):
            self._chooser.begin(prompt)

    def __call__(self, logits: Float32Array) -> int:
        """Choose a token id from logits (vocab_size,).

        Raises
        ------
        GrammarError
            If the engine gives up.
        """
        if self._is_free:
            token_id = self._chooser(logits)
            if token_id == self._marks.open_call:
                self._ask(len(logits))  # a call is what may come next
                self._last, self._is_free = token_id, False
            return token_id
        if self._in_reasoning:
            if self._marks.open_call is not None:  # it would end the reasoning, and be free, too
                logits = logits.copy()
                logits[self._marks.open_call] = -np.inf
            token_id = self._chooser(logits)
            self._in_reasoning = token_id != self._marks.close_channel
            self._may_think = False
            return token_id
        if self._allowed is None:
            self._allowed = self._ask(len(logits))
        allowed = self._allowed
        if self._may_think:
            allowed = allowed.copy()
            allowed[self._marks.open_channel] = True
        token_id = self._chooser(np.where(allowed, logits, np.float32(-np.inf)))
        if self._may_think and token_id == self._marks.open_channel:
            self._in_reasoning = True
        else:
            self._last, self._allowed = token_id, None
        self._is_free = self._only_calls and token_id == self._marks.close_call
        self._may_think = False
        return token_id

    def _ask(self, vocab_size: int) -> npt.NDArray[np.bool_]:
        try:
            mask = self._process.allowed(self._last)
        except SchemaRefused as error:
            raise GrammarError(f"the schema cannot be followed: {error}") from error
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=vocab_size, bitorder="little")
        if not bits.any():
            raise GrammarError("the schema cannot be followed: no token can come next")
        return bits.astype(bool)
