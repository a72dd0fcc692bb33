"""JSON schemas as XGrammar enforces them; the rest is refused.

XGrammar chooses one keyword of a schema, in the order of `_CHOICES`, and ignores its siblings. Of
others, such as `required` beside unknown names, it enforces a part. A schema is therefore served
only if every text that XGrammar allows is valid by JSON Schema (draft 2020-12). It need not allow
every valid text: properties come in the order of the schema, an object that lists properties has no
others unless it says so, and an array that lists its first items likewise.

The grammar that XGrammar makes of a schema is corrected as EBNF. Strings with a length get no
control characters, and other properties none of the listed names in escapes. Patterns are written
by `patterns.as_ebnf`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any, NoReturn

import jsonschema
import xgrammar
from sglang.srt.constrained.json_schema_validation import (
    UnsupportedJSONSchemaFeature,
    validate_xgrammar_json_schema,
)

from proper_tokens.patterns import Unreadable
from sglang_lz.bounds.limits import MOST_CHARACTERS, TOO_DEEP
from sglang_lz.constraints.patterns import as_ebnf

_CHOICES = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_OBJECTS = ("properties", "additionalProperties", "unevaluatedProperties")
_OTHERS = ("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames")
_NUMERIC = {"integer", "number"}
_ARRAYS = ("items", "prefixItems", "unevaluatedItems")
_COUNTS = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}
_PLAIN = {"type", "required", "multipleOf", *_NUMBERS, *sum(_COUNTS.values(), ())}
_ASSERTIONS = {
    *_PLAIN, *_CHOICES, *_OBJECTS, *_ARRAYS, "pattern", "format", "patternProperties",
    "propertyNames",
}  # fmt: skip
_NEVER = ("$dynamicRef", "$recursiveRef", "additionalItems", "dependencies")
_NOT_IN_XML = ("pattern", "minLength", "maxLength", "patternProperties", "propertyNames")
_TYPES = {
    "null": type(None),
    "boolean": bool,
    "integer": int,
    "number": float,
    "string": str,
    "array": list,
    "object": dict,
}
_ALL = frozenset(_TYPES)
_MOST_COUNT = 2**31 - 1
_MOST_BRANCHES = 64
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_ATOM = "[A-Za-z0-9_!#$%&'*+/=?^`{|}~-]+"
_EMAIL = rf"{_ATOM}(\.{_ATOM})*@{_LABEL}(\.{_LABEL})*"
"""XGrammar's own allows quoted names with escapes that are not JSON's."""
_UNSAFE_FORMATS = ("json-pointer", "relative-json-pointer")
_MARK = "sglang_lz"
_LOOSE = r"[^\"\\\r\n]"
_STRICT = r"[ !#-\[\]-\x7f\u0080-\u07ff\u0800-\ud7ff\ue000-\uffff\U00010000-\U0010ffff]"
"""Characters of a string in JSON. XGrammar's also have what is no character (`_BY_BYTES`)."""
_OTHER_KEY = re.compile(r"(?m)^\S+_addl_key\S* ::= .*$")
_ESCAPE = r' | ("\\" basic_escape basic_string_sub)'
_PATTERN = re.compile(r'Regex\("lz(\d+)", json_string=true\)')


class SchemaError(RuntimeError):
    """A schema that XGrammar would not enforce; upstream answers a RuntimeError with HTTP 400."""


class SchemaCompiler:
    """Stands between upstream's backend and XGrammar's compiler, and checks all schemas.

    Args:
        compiler: XGrammar's compiler, or what takes its place.
        whitespace: XGrammar's options `any_whitespace` and `max_whitespace_cnt`, for the schemas in
            structural tags, such as those of tools. Upstream passes them for other schemas only.
    """

    def __init__(self, compiler: Any, **whitespace: Any) -> None:
        self._compiler, self._whitespace = compiler, whitespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiler, name)

    def compile_json_schema(self, *, schema: str, **whitespace: Any) -> Any:
        """Like XGrammar's.

        Raises:
            RuntimeError: the schema cannot be read, or would not be enforced.
        """
        return self._compiler.compile_grammar(json_grammar(json.loads(schema), **whitespace))

    def compile_structural_tag(self, tag: str | xgrammar.StructuralTag) -> Any:
        """Like XGrammar's, and with the same errors as for a schema."""
        text = tag if isinstance(tag, str) else tag.model_dump_json()
        try:
            checked = self._checked(json.loads(text))
        except TypeError as error:
            raise SchemaError(f"the structural tag is not valid: {error}") from None
        return self._compiler.compile_structural_tag(json.dumps(checked))

    def _checked(self, node: Any) -> Any:
        """A part of a structural tag with its schemas checked, and written as grammars if JSON."""
        if isinstance(node, list):
            return [self._checked(part) for part in node]
        if not isinstance(node, dict):
            return node
        if node.get("type") not in ("json_schema", "qwen_xml_parameter"):
            return {name: self._checked(part) for name, part in node.items()}
        if node.get("any_order"):
            raise SchemaError("any_order must be false: required would not be enforced.")
        count = node.get("max_whitespace_cnt") or self._whitespace["max_whitespace_cnt"]
        schema = node.get("json_schema")
        if node.get("style", "json") == "json" and node["type"] == "json_schema":
            grammar = json_grammar(schema, self._whitespace["any_whitespace"], count)
            return {"type": "grammar", "grammar": str(grammar)}
        _Checked(schema, is_xml=True)
        style = {"type": "json_schema", "style": "qwen_xml"} if "style" not in node else {}
        return {**node, **style, "json_schema": schema, "max_whitespace_cnt": count}


def json_grammar(
    schema: Any, any_whitespace: bool, max_whitespace_cnt: int | None
) -> xgrammar.Grammar:
    """The grammar of a schema, with XGrammar's options.

    Args:
        schema: parsed JSON; it is changed.

    Raises:
        SchemaError: it would not be enforced.
        RuntimeError: XGrammar cannot read it.
    """
    checked = _Checked(schema)
    grammar = xgrammar.Grammar.from_json_schema(
        json.dumps(schema), any_whitespace=any_whitespace, max_whitespace_cnt=max_whitespace_cnt
    )
    text = str(grammar).replace(_LOOSE, _STRICT)
    text = _OTHER_KEY.sub(lambda line: line[0].replace(_ESCAPE, ""), text)
    text = _PATTERN.sub(lambda found: checked.patterns[int(found[1])], text)
    return xgrammar.Grammar.from_ebnf(text)


class _Checked:
    """The check of one schema. It leaves in the schema what XGrammar enforces as it is meant.

    Args:
        root: the schema, parsed JSON; it is changed.
        is_xml: whether its values are written in a model's own format of tools, where XGrammar
            enforces less.

    Attributes:
        patterns: the EBNF of the patterns; in the schema they are `lz0`, `lz1` and so on.

    Raises:
        SchemaError: XGrammar would not enforce it.
    """

    def __init__(self, root: Any, is_xml: bool = False) -> None:
        self._is_xml = is_xml
        self.patterns: list[str] = []
        self._root = root
        self._seen: set[int] = set()
        self._types: dict[int, frozenset[str]] = {}
        self._targets = [(root, "#")]
        try:
            validate_xgrammar_json_schema(root)
            while self._targets:
                self._check(*self._targets.pop())
        except RecursionError:
            raise SchemaError(f"the JSON schema cannot be read: {TOO_DEEP}") from None
        except UnsupportedJSONSchemaFeature as error:
            raise SchemaError(str(error)) from None
        except (TypeError, AttributeError, LookupError, ValueError) as error:
            raise SchemaError(f"the JSON schema is not valid: {error}") from None

    def _check(self, schema: Any, at: str) -> None:
        refuse = partial(_refuse, at)
        if schema is True or id(schema) in self._seen:
            return
        if not isinstance(schema, dict):
            refuse("false" if schema is False else "schema", "no value is allowed here")
        self._seen.add(id(schema))
        never = {*_NEVER, *(_NOT_IN_XML if self._is_xml else ())}
        for name in never | ({"$id"} if schema is not self._root else set()):
            if name in schema:
                refuse(name, "it is not enforced")
        choice = next((name for name in _CHOICES if name in schema), None)
        if choice is None:
            self._typed(schema, at)
        else:
            self._chosen(schema, at, choice)
        if not _ASSERTIONS.isdisjoint(schema.keys() - {"type"}):
            # XGrammar confuses schemas that differ in properties named like annotations.
            schema[_MARK] = len(self._seen)

    def _chosen(self, schema: dict[str, Any], at: str, choice: str) -> None:
        """Check a schema of which XGrammar reads a single keyword."""
        value = schema[choice]
        siblings = {name: schema[name] for name in schema.keys() & _ASSERTIONS - {choice}}
        if choice in ("const", "enum"):
            values = [value] if choice == "const" else value
            if not isinstance(values, list) or not values:
                _refuse(at, choice, "it must be a list of values")
            _check_values(values, siblings, at, choice)
            return
        if choice == "$ref":
            self._targets.append((self._target(schema, at), str(value)))
        elif not isinstance(value, list) or not value:
            _refuse(at, choice, "it must be a list of schemas")
        elif choice == "allOf" and len(value) > 1:
            _refuse(at, choice, "only one schema in it is enforced")
        else:
            for i, option in enumerate(value):
                self._check(option, f"{at}/{choice}/{i}")
        if choice == "oneOf":
            if len(value) > _MOST_BRANCHES:
                _refuse(at, choice, f"it has more than {_MOST_BRANCHES} schemas")
            for i, j in combinations(range(len(value)), 2):
                if not self._are_apart(value[i], value[j]):
                    _refuse(at, choice, f"a value may match both schemas {i} and {j} of it")
            schema["anyOf"] = schema.pop("oneOf")
        if siblings.keys() == {"type"}:
            types = _own_types(siblings, at)
            if "number" in types:
                types |= {"integer"}
            if self._types_of(schema) <= types:
                return
        if siblings:
            _refuse(at, choice, f"{', '.join(sorted(siblings))} beside it would be ignored")

    def _typed(self, schema: dict[str, Any], at: str) -> None:
        """Check a schema that XGrammar reads by its type."""
        types = _own_types(schema, at)
        if types == _ALL and "type" not in schema:
            for name in sorted(_ASSERTIONS & schema.keys()):
                _refuse(at, name, "it is not enforced without a type beside it")
            return
        for kind in types & _COUNTS.keys():
            for name in _COUNTS[kind]:
                count = schema.get(name, 0)
                if type(count) is not int or not 0 <= count <= _MOST_COUNT:
                    _refuse(at, name, f"it must be an integer from 0 to {_MOST_COUNT}")
        for name in _NUMBERS if types & {"integer", "number"} else ():
            bound = schema.get(name, 0)
            is_exact = type(bound) in (int, float) and _is_exact(bound, "integer" in types)
            is_huge = name.startswith("exclusive") and abs(bound) > _MOST_COUNT
            if not is_exact or ("number" in types and (is_huge or float(f"{bound:.6f}") != bound)):
                _refuse(at, name, "XGrammar cannot represent it exactly, with six decimals")
        if "string" in types:
            self._string(schema, at)
        if "array" in types:
            self._array(schema, at)
        if "object" in types:
            self._object(schema, at)

    def _string(self, schema: dict[str, Any], at: str) -> None:
        if schema.get("format") in _UNSAFE_FORMATS:
            _refuse(at, "format", f"strings of the format {schema['format']} would not be JSON")
        if schema.get("format") == "email" and not self._is_xml:
            del schema["format"]
            schema["pattern"] = _EMAIL
        if "pattern" in schema:
            schema["pattern"] = self._pattern(schema["pattern"], at, "pattern")

    def _pattern(self, pattern: Any, at: str, name: str) -> str:
        """Put something that XGrammar leaves alone in the place of a pattern."""
        if not isinstance(pattern, str):
            _refuse(at, name, "it must be a string")
        try:
            self.patterns.append(as_ebnf(pattern))
        except Unreadable as error:
            _refuse(at, name, str(error))
        if sum(map(len, self.patterns)) > MOST_CHARACTERS:
            _refuse(at, name, f"patterns are longer than {MOST_CHARACTERS} when written as EBNF")
        return f"lz{len(self.patterns) - 1}"

    def _array(self, schema: dict[str, Any], at: str) -> None:
        first = schema.setdefault("prefixItems", [])
        if not isinstance(first, list):
            _refuse(at, "prefixItems", "it must be a list of schemas")
        if not first:
            del schema["prefixItems"]
            if schema.keys().isdisjoint(_ARRAYS) and schema.keys() != {"type"}:
                schema["items"] = {}
        for i, item in enumerate(first):
            first[i] = {} if item is True else item
            self._check(first[i], f"{at}/prefixItems/{i}")
        for name in ("items", "unevaluatedItems"):
            if schema.get(name, False) is not False:
                self._check(schema[name], f"{at}/{name}")

    def _object(self, schema: dict[str, Any], at: str) -> None:
        refuse = partial(_refuse, at)
        for name in ("properties", "patternProperties"):
            if not isinstance(schema.get(name, {}), dict):
                refuse(name, "it must be an object")
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            refuse("required", "it must be a list of names")
        for name in required:
            if name not in properties:
                refuse("required", f"{name!r} must be listed in properties")
        if patterns and (properties or len(patterns) > 1 or "propertyNames" in schema):
            refuse("patternProperties", "it is enforced only as one pattern, without other names")
        names = schema.get("propertyNames", True)
        if schema.keys().isdisjoint(("properties", *_OTHERS)) and schema.keys() != {"type"}:
            schema["additionalProperties"] = True
        others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
        if names is True:
            schema.pop("propertyNames", None)
        elif properties or others is False:
            refuse("propertyNames", "it is not enforced beside other names")
        elif not isinstance(names, dict):
            refuse("propertyNames", "it must be an object or true")
        else:
            if names.keys().isdisjoint((*_CHOICES, "type")):
                names["type"] = "string"
            self._check(names, f"{at}/propertyNames")
            if self._types_of(names) != {"string"}:
                refuse("propertyNames", "it must allow strings only")
        is_free = others not in (None, False) or patterns or names is not True
        if is_free and schema.get("minProperties", 0) > 1:
            refuse("minProperties", "a repeated name would count twice")
        if self._is_xml and properties and others not in (None, False):
            refuse("additionalProperties", "it is not enforced beside other names here")
        for name, value in properties.items():
            self._check(value, f"{at}/properties/{_escaped(name)}")
        for name, value in list(patterns.items()):
            self._check(value, f"{at}/patternProperties/{_escaped(name)}")
            schema["patternProperties"] = {self._pattern(name, at, "patternProperties"): value}
        for name in ("additionalProperties", "unevaluatedProperties"):
            if schema.get(name, False) is not False:
                self._check(schema[name], f"{at}/{name}")

    def _target(self, schema: dict[str, Any], at: str = "#") -> Any:
        """The schema that a `$ref` points to."""
        ref, node = schema["$ref"], self._root
        parts = ref[2:].split("/") if isinstance(ref, str) and ref != "#" else []
        if not isinstance(ref, str) or ref[:2] not in ("#", "#/") or "" in parts:
            _refuse(at, "$ref", "it must point into this schema, as #/$defs/name does")
        for part in parts:
            if "~" in part or "%" in part or not isinstance(node, dict) or part not in node:
                _refuse(at, "$ref", f"{ref!r} is not found by plain names of keys")
            node = node[part]
            if isinstance(node, dict) and "$id" in node and node is not self._root:
                _refuse(at, "$ref", f"{ref!r} points through a schema with an $id")
        return node

    def _types_of(self, schema: Any) -> frozenset[str]:
        """All types that XGrammar may write for a schema, or more."""
        if not isinstance(schema, dict):
            return _ALL
        if id(schema) in self._types:
            return self._types[id(schema)]
        self._types[id(schema)] = _ALL  # while a cycle of references is followed
        choice = next((name for name in _CHOICES if name in schema), None)
        if choice == "$ref":
            found = self._types_of(self._target(schema))
        elif choice in ("const", "enum"):
            values = [schema["const"]] if choice == "const" else schema["enum"]
            found = frozenset(map(_type_of, values))
        elif choice is not None:
            found = frozenset().union(*map(self._types_of, schema[choice]))
        else:
            found = _own_types(schema, "#")
        self._types[id(schema)] = found
        return found

    def _are_apart(self, one: Any, other: Any) -> bool:
        """Whether no value that XGrammar writes for one of two schemas is valid by the other."""
        one, other = self._plain(one), self._plain(other)
        for schema in (one, other):
            if not isinstance(schema, dict) or schema.keys().isdisjoint(("type", "const", "enum")):
                return False
        mine, theirs = self._types_of(one), self._types_of(other)
        if not mine & theirs and not (mine & _NUMERIC and theirs & _NUMERIC):
            return True
        values, others = _values(one), _values(other)
        if values and others:
            return values.isdisjoint(others)
        return mine == theirs == {"object"} and self._is_foreign(one, other, True)

    def _is_foreign(self, one: dict[str, Any], other: dict[str, Any], both: bool = False) -> bool:
        """Whether no object that XGrammar writes for one schema is valid by the other."""
        mine, theirs = one.get("properties", {}), other.get("properties", {})
        is_closed = "properties" in one and all(one.get(name, False) is False for name in _OTHERS)
        found = is_closed and not mine.keys() >= {*other.get("required", ())}
        for name in one.get("required", ()):
            values, others = (_values(self._plain(each.get(name))) for each in (mine, theirs))
            found = found or bool(values and others and values.isdisjoint(others))
        return found and (not both or self._is_foreign(other, one))

    def _plain(self, schema: Any) -> Any:
        """The schema behind a `$ref`, or in an `allOf` of one."""
        for _ in range(8):
            if isinstance(schema, dict) and "$ref" in schema:
                schema = self._target(schema)
            elif isinstance(schema, dict) and isinstance(schema.get("allOf"), list):
                schema = schema["allOf"][0]
            else:
                break
        return schema


def _values(schema: Any) -> set[Any] | None:
    """The values that a schema lists, if they are plain."""
    values = schema.get("enum") if isinstance(schema, dict) else None
    if isinstance(schema, dict) and "const" in schema:
        values = [schema["const"]]
    if not isinstance(values, list) or any(isinstance(value, (list, dict)) for value in values):
        return None
    return {(isinstance(value, bool), value) for value in values}


def _check_values(values: Sequence[Any], siblings: dict[str, Any], at: str, name: str) -> None:
    """Refuse values that siblings forbid, because XGrammar ignores the siblings."""
    for sibling in siblings.keys() - _PLAIN - {"enum"}:
        _refuse(at, name, f"{sibling} beside it would be ignored")
    rest = list(values)
    while rest:
        value = rest.pop()
        if type(value) is int and not _is_exact(value, True):
            _refuse(at, name, f"XGrammar cannot represent {value} exactly")
        rest += value.values() if isinstance(value, dict) else ()
        rest += value if isinstance(value, list) else ()
    if not siblings:
        return
    try:
        jsonschema.Draft202012Validator.check_schema(siblings)
    except jsonschema.SchemaError as error:
        _refuse(at, name, f"beside it, {error.message}")
    validator = jsonschema.Draft202012Validator(siblings)
    for value in values:
        if not validator.is_valid(value):
            given = ", ".join(sorted(siblings))
            _refuse(at, name, f"{given} beside it would be ignored, but forbids {value!r:.60}")


def _own_types(schema: dict[str, Any], at: str) -> frozenset[str]:
    """The types that XGrammar writes for a schema of which it chooses no keyword."""
    if "type" not in schema:
        for kind, names in (("object", _OBJECTS), ("array", _ARRAYS)):
            if not schema.keys().isdisjoint(names):
                return frozenset((kind,))
        return _ALL
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not types or not all(isinstance(name, str) and name in _ALL for name in types):
        _refuse(at, "type", f"it must be one or several of {', '.join(_TYPES)}")
    return frozenset(types)


def _type_of(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return "integer"
    return next(name for name, kind in _TYPES.items() if type(value) is kind)


def _is_exact(number: float, is_integer: bool) -> bool:
    """Whether XGrammar reads a number as it is: in 64 bits, or as a double."""
    if is_integer:
        return number == number // 1 and -(2**63) < number < 2**63
    try:
        return float(number) == number and abs(number) < float("inf")
    except OverflowError:
        return False


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _refuse(at: str, name: str, why: str) -> NoReturn:
    raise SchemaError(f"the JSON schema cannot be enforced: {name} at {at:.200}: {why}.")
