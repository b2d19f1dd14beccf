"""Which values a payload may have, so that PostgreSQL and clients in any language read back what was written.

Encoders lose data silently: NaN becomes null, a set becomes a list in no order, a naive datetime has no time zone, NUL
and lone surrogates break jsonb. The functions here find such values and name their path in the payload.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from aftercommit.errors import InvalidPayload

MAX_DEPTH = 100

_LONGEST_PATH = 200
_WIDEST = 2**63
_PLAIN = frozenset({bool, type(None), UUID, date, timedelta})
_SEQUENCES = (list, tuple)
_MOMENTS = (datetime, time)
_SETS = (set, frozenset)
_BYTES = (bytes, bytearray, memoryview)
# Floats are not listed: NaN and Infinity show in the encoded bytes, as null.
_LOSSY_TYPES = (
    inspect.AnyType,
    inspect.CustomType,
    inspect.DateTimeType,
    inspect.ExtType,
    inspect.FrozenSetType,
    inspect.RawType,
    inspect.SetType,
    inspect.TimeType,
)
_FIELD_BY_FIELD = (inspect.DataclassType, inspect.StructType)
_UNBOUNDED: tuple[tuple[Any, type[Any]], ...] = (
    (inspect.StrType(), str),
    (inspect.IntType(), int),
    (inspect.BoolType(), bool),
)
_FLOATS = (inspect.FloatType, inspect.AnyType, inspect.CustomType, inspect.DecimalType)

# What is wrong with a value, and its path from the inside out.
Finding = tuple[str, list[str | int]]


def _plain(value: Any) -> Any:
    """A pydantic model as a dict; a subclass (such as a numpy float) as its plain base type."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, datetime):
        return datetime.fromisoformat(value.isoformat())
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(by_alias=True, warnings=False)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def check(payload: Any, *, typed: bool) -> None:
    """Refuse values that JSON would change, and name their path.

    A `typed` payload may have bytes, and keys that are not strings: its type reads them back.
    """
    try:
        found = _find(payload, typed, 0)
    except RecursionError:
        found = ("is nested too deeply for this program's stack: flatten the payload", [])
    if found is not None:
        problem, reversed_path = found
        path = dotted(reversed(reversed_path))
        raise InvalidPayload(f"{path} {problem}", field=path)


def text_problem(text: str) -> str | None:
    """Why PostgreSQL cannot store this text, or None."""
    if "\x00" in text:
        return "contains a NUL character, which PostgreSQL cannot store: remove it"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            return (
                f"contains the lone surrogate {text[problem.start]!r}, which is not Unicode text: "
                "decode the source with errors='replace'"
            )
    return None


def is_storable(value: Any, longest: int) -> bool:
    """Whether the value is a non-empty string that PostgreSQL can store in so many characters."""
    if not isinstance(value, str) or not 0 < len(value) <= longest:
        return False
    return (value.isascii() and "\x00" not in value) or text_problem(value) is None


def dotted(parts: Iterable[str | int]) -> str:
    """A path in a payload as text: `$.lines[2].price`."""
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return path if len(path) <= _LONGEST_PATH else path[:_LONGEST_PATH] + "…"


def _find(value: Any, typed: bool, depth: int) -> Finding | None:
    """The first value inside that JSON would change; its path is built on the way back."""
    inside = _inside(value)
    if inside is None:
        problem = _leaf_problem(value, typed)
        return None if problem is None else (problem, [])
    if depth > MAX_DEPTH:
        return f"is nested deeper than {MAX_DEPTH} levels: flatten the payload", []
    if isinstance(value, Mapping):
        problem = _key_problem(value, typed)
        if problem is not None:
            return problem, []
    for part, inner in inside:
        if _is_plainly_fine(inner):
            continue
        found = _find(inner, typed, depth + 1)
        if found is not None:
            found[1].append(str(part) if isinstance(value, Mapping) else part)
            return found
    return None


def _inside(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """The values in a container, each with its key, index or name; None if it is not a container."""
    if isinstance(value, _SEQUENCES):
        return enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, type):
        return None
    if hasattr(value, "model_fields_set"):
        pairs: Iterable[tuple[str, Any]] = value
        return pairs
    cls: Any = type(value)
    names = _fields_of(cls)
    if names is None:
        return None
    pairs = ((name, getattr(value, name, msgspec.UNSET)) for name in names)
    return (pair for pair in pairs if pair[1] is not msgspec.UNSET)


@lru_cache(maxsize=1024)
def _fields_of(cls: Any) -> tuple[str, ...] | None:
    """The fields of a class whose objects are encoded field by field, or None."""
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    if hasattr(cls, "__attrs_attrs__"):
        return tuple(field.name for field in cls.__attrs_attrs__)
    return None


def _is_plainly_fine(value: Any) -> bool:
    """A fast check that most values pass."""
    kind = type(value)
    if kind is str:
        return str.isascii(value) and "\x00" not in value
    if kind is int:
        return bool(-_WIDEST < value < _WIDEST)
    if kind is float:
        return math.isfinite(value)
    return kind in _PLAIN


def _leaf_problem(value: Any, typed: bool) -> str | None:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return text_problem(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value!r}, which JSON does not have: use None or a string"
    if isinstance(value, _MOMENTS) and value.tzinfo is None:
        kind = type(value).__name__
        return f"is the naive {kind} {value.isoformat()}: attach a time zone, e.g. tzinfo=UTC"
    if isinstance(value, _SETS):
        return "is a set, which has no order and no JSON form: use a sorted list"
    if isinstance(value, _BYTES) and not typed:
        return f"is {type(value).__name__}, which JSON does not have: encode it as text"
    if isinstance(value, msgspec.Raw):
        return _raw_problem(value)
    try:
        # Ask the encoder about all other types.
        ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return f"is of type {type(value).__name__} and has no JSON form: convert it first"
    return None


def _key_problem(mapping: Mapping[Any, Any], typed: bool) -> str | None:
    for key in mapping:
        if isinstance(key, str):
            problem = text_problem(key)
        elif not typed:
            problem = f"is of type {type(key).__name__}: JSON objects have string keys"
        else:
            problem = _leaf_problem(key, typed)
        if problem is not None:
            return f"has the key {key!r:.80}, which {problem}"
    return None


def _raw_problem(raw: msgspec.Raw) -> str | None:
    try:
        check(msgspec.json.decode(raw), typed=False)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidPayload) as problem:
        return f"is raw JSON that cannot be stored: {problem}"
    return None


def may_lose(payload_type: Any) -> bool:
    """Whether values of this type can change silently when they are encoded, or be nested without end."""
    return _is_made_of(payload_type, _LOSSY_TYPES)


def has_floats(payload_type: Any) -> bool:
    """Whether values of this type can contain NaN."""
    return _is_made_of(payload_type, _FLOATS)


def plain_types(payload_type: Any) -> tuple[type[Any], ...] | None:
    """The field types of a class with at least two fields, all of them strings, integers or booleans; otherwise None.

    An object of such a class whose values have exactly these types always reads back as it was written.
    """
    if hasattr(payload_type, "__post_init__"):
        return None
    info: Any = inspect.type_info(payload_type)
    if not isinstance(info, _FIELD_BY_FIELD) or len(info.fields) < 2:
        return None
    plain = tuple(kind for field in info.fields for described, kind in _UNBOUNDED if field.type == described)
    return plain if len(plain) == len(info.fields) else None


def _is_made_of(payload_type: Any, kinds: tuple[Any, ...]) -> bool:
    try:
        return _any_of(inspect.type_info(payload_type), kinds, ())
    except TypeError:
        return True


def _any_of(info: Any, kinds: tuple[Any, ...], outer: tuple[Any, ...]) -> bool:
    if isinstance(info, kinds):
        return True
    cls = getattr(info, "cls", None)
    if cls is not None:
        if cls in outer:
            # A type that contains itself can be nested without end.
            return True
        outer = (*outer, cls)
    nested: list[Any] = []
    for attribute in ("types", "item_types"):
        nested.extend(getattr(info, attribute, ()))
    for attribute in ("item_type", "key_type", "value_type"):
        inner = getattr(info, attribute, None)
        if inner is not None:
            nested.append(inner)
    nested.extend(field.type for field in getattr(info, "fields", ()))
    return any(_any_of(inner, kinds, outer) for inner in nested)
