"""Declared arguments written out in the words that chat templates read.

Gemma's templates read `type`, `description`, `enum`, `items`, `properties`, `required` and
`nullable` of a JSON schema. Behind `$ref`, `anyOf` or `const`, as pydantic and many tools write
them, they see nothing, and the model is not told what it has to fill in. Here references are put
in, and choices become the closest of those words. A schema that has none of them stays as it is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gemma4_compile.errors import UsageError, printable
from gemma4_compile.runtime.reply.references import referred

MAX_VALUES = 20_000  # of all schemas of a request: references can double at every level
MAX_DEPTH = 64
_LETTERS = 256  # of data beside a schema, as of an `enum`, that count as a value
_KEYS = 16  # of a schema that count as a value: each time it is put in they are copied
_MAX_KINDS = 16  # types of one schema that are told
_SHOWN = 8  # names or values of an alternative that a description lists
_DEFINITIONS = ("$defs", "definitions")
_JOINED = ("allOf", "anyOf", "oneOf")
_PARTS = (*_DEFINITIONS, *_JOINED, "additionalProperties", "items", "properties")
_DATA = ("const", "default", "example")  # null is a value of these
_EITHER = "Either "
_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}

Schema = Mapping[str, object]


def type_of(value: object) -> str:
    """The word that a schema has for a value of JSON."""
    return _TYPES.get(type(value), "object")


class SchemaWriter:
    """Writes the schemas of one request out.

    Attributes
    ----------
    missing : references that point nowhere, or out of their schema
    """

    def __init__(self) -> None:
        self.missing: list[str] = []
        self._left = MAX_VALUES
        self._scopes: list[Schema] = []  # schemas with definitions, the whole one first
        self._open: list[str] = []  # references that are being put in
        self._weighed: dict[int, tuple[object, int]] = {}  # data by identity, which it keeps

    def write_out(self, schema: Schema) -> Schema:
        """Return a schema that needs no other.

        Where it refers to itself, an object of any kind ends it.

        Raises
        ------
        UsageError
            If it would become too long, or too deep.
        """
        self._scopes = [schema]
        written = self._schema(schema, 0)
        assert isinstance(written, Mapping), "an object stays one"
        return written

    def _schema(self, schema: object, depth: int) -> object:
        self._left -= 1
        if isinstance(schema, Mapping):  # what a reference puts in again is gone through again
            self._left -= len(schema) // _KEYS
            data = (value for key, value in schema.items() if key not in _PARTS)
            self._left -= sum(map(self._weight, data)) // _LETTERS
        if self._left < 0 or depth > MAX_DEPTH:
            raise UsageError(
                f"a tool's declaration is too long with its references put in: expected at most "
                f"{MAX_VALUES} values, and {MAX_DEPTH} inside each other",
                hint="declare fewer tools, or arguments that refer to fewer others",
            )
        if schema is None or isinstance(schema, bool):  # anything: templates take objects alone
            return {}
        if not isinstance(schema, Mapping):
            return schema
        if not any(key in schema for key in _DEFINITIONS):
            return self._alone(schema, depth)
        self._scopes.append(schema)
        try:
            return self._alone(_without(schema, *_DEFINITIONS), depth)
        finally:
            self._scopes.pop()

    def _weight(self, value: object) -> int:
        """The values and letters of data, counted once."""
        if not isinstance(value, (str, list, Mapping)):
            return 1
        if id(value) not in self._weighed:
            waiting, weight = [value], 0
            while waiting:
                each = waiting.pop()
                weight += 1 + (len(each) if isinstance(each, str) else 0)
                if isinstance(each, Mapping):
                    waiting += [*each, *each.values()]
                elif isinstance(each, list):
                    waiting += each
            self._weighed[id(value)] = value, weight
        return self._weighed[id(value)][1]

    def _alone(self, schema: Schema, depth: int) -> object:
        """A schema without definitions."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referred(reference, _without(schema, "$ref"), depth)
        for joined in _JOINED:
            members = schema.get(joined)
            if isinstance(members, list) and members:
                rest = _without(schema, joined)
                written = [self._schema(member, depth + 1) for member in members]
                whole = _all_of(written) if joined == "allOf" else _one_of(written)
                return self._schema(_over(whole, rest), depth + 1)
        return self._inner(_plain(schema), depth)

    def _referred(self, reference: str, rest: Schema, depth: int) -> object:
        """What a reference means, with what is written next to it."""
        if reference in self._open:
            return self._schema({"type": "object", **rest}, depth + 1)
        places = (_found(scope, reference) for scope in self._scopes)
        target = next((each for each in places if each is not None), None)
        if target is None:
            self.missing.append(reference)
            return self._schema(rest, depth + 1)
        self._open.append(reference)
        try:
            written = self._schema(target, depth + 1)
        finally:
            self._open.pop()
        if not rest or not isinstance(written, Mapping):
            return written
        return self._schema(_over(written, rest), depth + 1)

    def _inner(self, schema: Schema, depth: int) -> Schema:
        """The schema with those inside it written out."""
        written = dict(schema)
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            written["properties"] = {
                name: self._schema(_schema_of(name, inner), depth + 1)
                for name, inner in properties.items()
            }
        elif not properties:  # as PHP writes no names
            written.pop("properties", None)
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), Mapping):
                written[key] = self._schema(schema[key], depth + 1)
        return written


def _schema_of(name: str, inner: object) -> object:
    """The schema of an argument; UsageError for what is none."""
    if inner is None or isinstance(inner, (bool, Mapping)):
        return inner
    raise UsageError(
        f"the argument `{printable(name)[:60]}` has no JSON schema: expected an object, found "
        f"{json.dumps(inner)[:60]}",
        hint='declare it as {"type": "string"}, with the type that it has',
    )


def _without(schema: Schema, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}


def _over(schema: Schema, rest: Schema) -> Schema:
    """A schema with what stands next to a reference to it, which counts where both differ."""
    both = _all_of([rest, schema])
    description = schema.get("description")
    own = rest.get("description")
    if isinstance(own, str) and isinstance(description, str) and description.startswith(_EITHER):
        end = "" if own.endswith((".", "!", "?", ":")) else "."
        return {**both, "description": f"{own}{end} {description}"}
    return both


def _found(root: Schema, reference: str) -> object:
    """What a reference points to, or None."""
    try:
        return referred(root, reference)
    except LookupError:
        return None


def _plain(schema: Schema) -> Schema:
    """The schema with one type and a list of values, where it says so in other words.

    Programs in Go write what is not there as null.
    """
    plain = {key: value for key, value in schema.items() if value is not None or key in _DATA}
    if "type" in plain:
        kind = plain["type"]
        plain["type"] = [*map(_word, kind)] if isinstance(kind, list) else _word(kind)
    if "const" in plain:
        plain.setdefault("enum", [plain.pop("const")])
    values = plain.get("enum")
    kinds = plain.get("type")
    if isinstance(values, list) and None in values and len(values) > 1:
        plain["enum"] = values = [value for value in values if value is not None]
        plain.setdefault("nullable", True)
    if kinds is None and isinstance(values, list) and values:
        kinds = list(dict.fromkeys(map(type_of, values)))
    if isinstance(kinds, list):
        named = [kind for kind in kinds if kind != "null"][:_MAX_KINDS]
        named = [kind for index, kind in enumerate(named) if kind not in named[:index]]
        if "null" in kinds and named:
            plain.setdefault("nullable", True)
        if len(named) > 1:
            return _one_of([{**plain, "type": kind} for kind in named])
        if kinds:
            plain["type"] = (named or kinds)[0]
    elif kinds is None:
        if isinstance(plain.get("properties"), Mapping):
            plain["type"] = "object"
        elif "items" in plain or "prefixItems" in plain:
            plain["type"] = "array"
    items = plain.get("prefixItems", plain.get("items"))
    if isinstance(items, list) and items and not isinstance(plain.get("items"), Mapping):
        plain["items"] = {"anyOf": items}
    return plain


def _word(kind: object) -> object:
    """A type in small letters: Google's own API writes `OBJECT`."""
    return kind.lower() if isinstance(kind, str) and kind.lower() in _TYPES.values() else kind


def _all_of(members: Sequence[object]) -> Schema:
    """What all of several schemas say; of two that differ the first."""
    whole: dict[str, object] = {}
    properties: dict[str, object] = {}
    required: dict[str, None] = {}
    for member in _schemas(members):
        for key, value in member.items():
            if key == "properties" and isinstance(value, Mapping):
                whole.setdefault(key, properties)
                for name, inner in value.items():
                    properties.setdefault(name, inner)
            elif key == "required" and isinstance(value, list):
                whole.setdefault(key, value)
                required.update(dict.fromkeys(_names(value)))
            else:
                whole.setdefault(key, value)
    return {**whole, "required": list(required)} if required else whole


def _one_of(members: Sequence[object]) -> Schema:
    """The closest to one of several schemas, each written out; null makes it nullable."""
    alternatives = [member for member in _schemas(members) if member.get("type") != "null"]
    is_null = len(alternatives) < len(members) or any(a.get("nullable") for a in alternatives)
    nullable: Schema = {"nullable": True} if is_null else {}
    if not any("type" in alternative for alternative in alternatives):
        # Of null alone, or rules that templates do not read, such as which names go together.
        return {"type": "null"} if is_null and not alternatives else nullable
    if len(alternatives) == 1:
        return {**alternatives[0], **nullable}
    kinds = {json.dumps(alternative.get("type")) for alternative in alternatives}
    if kinds == {'"string"'} and all(isinstance(a.get("enum"), list) for a in alternatives):
        values = [value for a in alternatives for value in _listed(a, "enum")]
        return {"type": "string", "enum": list(dict.fromkeys(map(str, values))), **nullable}
    if kinds == {'"object"'} and all(
        isinstance(a.get("properties"), Mapping) for a in alternatives
    ):
        return {**_merged(alternatives), **nullable}
    if kinds == {'"integer"', '"number"'}:
        return {"type": "number", **nullable}
    told = list(dict.fromkeys(map(_described, alternatives)))
    # That of which most can be told is shown, the others are named.
    fullest = {"object": 2, "array": 1}
    shown = max(alternatives, key=lambda a: fullest.get(str(a.get("type")), 0))
    if len(told) == 1:
        return {**shown, **nullable}
    return {**_without(shown, "enum"), "description": _either(told), **nullable}


def _either(told: Sequence[str]) -> str:
    others = ["others"] if len(told) > _SHOWN else []
    return f"{_EITHER}{', or '.join([*told[:_SHOWN], *others])}."


def _merged(alternatives: Sequence[Schema]) -> Schema:
    """One object with the properties of several; what all of them require is required."""
    found: dict[str, dict[str, object]] = {}
    needed: Counter[str] = Counter()
    for alternative in alternatives:
        properties = alternative["properties"]
        assert isinstance(properties, Mapping), "the caller looks"
        for name, inner in properties.items():
            found.setdefault(name, {})[json.dumps(inner, sort_keys=True)] = inner
        needed.update(set(_names(alternative.get("required"))))
    told = list(dict.fromkeys(map(_described, alternatives)))
    return {
        "type": "object",
        **({"description": _either(told)} if len(told) > 1 else {}),
        "properties": {
            name: _one_of(list(inner.values())) if len(inner) > 1 else next(iter(inner.values()))
            for name, inner in found.items()
        },
        "required": [name for name in found if needed[name] == len(alternatives)],
    }


def _described(schema: Schema) -> str:
    """A schema in a few words: its type, the values or the names in it."""
    kind = str(schema.get("type") or "any value")
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in values[:_SHOWN])
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and properties:
        return f"{kind} ({', '.join(list(properties)[:_SHOWN])})"
    items = schema.get("items")
    if isinstance(items, Mapping) and items.get("type"):
        return f"{kind} of {items['type']}"
    return kind


def _schemas(members: Sequence[object]) -> Iterator[Schema]:
    """Those that say something: `true` allows everything."""
    return (member for member in members if isinstance(member, Mapping))


def _names(required: object) -> list[str]:
    entries = required if isinstance(required, list) else []
    return [name for name in entries if isinstance(name, str)]


def _listed(schema: Schema, key: str) -> list[object]:
    value = schema.get(key)
    return value if isinstance(value, list) else []
