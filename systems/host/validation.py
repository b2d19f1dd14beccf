"""What pydantic says about a value, as the end of a sentence that begins with a field. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}
_WANTED: Final[Mapping[str, str]] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
}
_SAID: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is an unknown field",
    "string_too_short": "must have at least {min_length} character{s}",
    "string_too_long": "must have at most {max_length} character{s}",
    "too_short": "must have at least {min_length} item{s}",
    "too_long": "must have at most {max_length} item{s}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "enum": "must be one of {expected}",
    "literal_error": "must be one of {expected}",
    "string_pattern_mismatch": "must match {pattern}",
    "value_error": "{error}",
}


def sentence(error: Mapping[str, Any]) -> str:
    """What is wrong, without the field: `must have at least 1 character`."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _SAID:
        counts: Sequence[int] = [context[name] for name in ("min_length", "max_length") if name in context]
        return _SAID[kind].format(**context, s="" if counts == [1] else "s")
    if kind in _WANTED:
        return f"must be {_WANTED[kind]}, not {_KINDS.get(type(error['input']), 'what it is')}"
    return f"cannot be read: {error['msg']}"
