"""What may stand in a payload so that PostgreSQL, every client and every language read back what was written.

Encoders are lenient in ways that lose data: NaN becomes null, a set becomes a list in no order, a naive
datetime loses its meaning, NUL and lone surrogates break jsonb. This room finds such values and names the
place. It knows values, never event types or envelopes.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from aftercommit.errors import InvalidPayload

MAX_DEPTH = 100

_LONGEST_PATH = 200
_PLAIN = frozenset({bool, type(None)})
# A float is not here: what it can lose (NaN, Infinity) is seen in the encoded bytes, as a null.
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

# What is wrong with a value, and the way to it from the inside out.
Finding = tuple[str, list[str | int]]


def _plain(value: Any) -> Any:
    """A pydantic model as a dict; a subclass (marked-up string, numpy float) as its plain base."""
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
    """Refuse what JSON cannot carry faithfully, naming the place.

    Payloads that are `typed` may hold bytes and keys that are not strings: their type reads them back.
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
    """Whether this is text that fits a column of so many characters."""
    return isinstance(value, str) and 0 < len(value) <= longest and text_problem(value) is None


def dotted(parts: Iterable[str | int]) -> str:
    """A place in a payload as text: `$.lines[2].price`."""
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return path if len(path) <= _LONGEST_PATH else path[:_LONGEST_PATH] + "…"


def _find(value: Any, typed: bool, depth: int) -> Finding | None:
    """The first value from here on that JSON cannot carry; the way to it is put together on the way back."""
    problem = _problem(value, typed)
    if problem is not None:
        return problem, []
    if depth > MAX_DEPTH and _is_container(value):
        return f"is nested deeper than {MAX_DEPTH} levels: flatten the payload", []
    for part, inner in _children(value):
        if type(inner) in _PLAIN:
            continue
        found = _find(inner, typed, depth + 1)
        if found is not None:
            found[1].append(part)
            return found
    return None


def _problem(value: Any, typed: bool) -> str | None:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return text_problem(value)
    if isinstance(value, float):
        return (
            None if math.isfinite(value) else f"is {value!r}, which JSON does not have: use None or a string"
        )
    if isinstance(value, datetime | time):
        if value.tzinfo is None:
            kind = type(value).__name__
            return f"is the naive {kind} {value.isoformat()}: attach a time zone, e.g. tzinfo=UTC"
    elif isinstance(value, set | frozenset):
        return "is a set, which has no order and no JSON form: use a sorted list"
    elif isinstance(value, bytes | bytearray | memoryview) and not typed:
        return f"is {type(value).__name__}, which JSON does not have: encode it as text"
    elif isinstance(value, Mapping):
        return _key_problem(value, typed)
    elif isinstance(value, msgspec.Raw):
        return _raw_problem(value)
    return None if _is_container(value) else _leaf_problem(value)


def _key_problem(mapping: Mapping[Any, Any], typed: bool) -> str | None:
    for key in mapping:
        if isinstance(key, str):
            problem = text_problem(key)
        elif not typed:
            problem = f"is of type {type(key).__name__}: JSON objects have string keys"
        else:
            problem = _problem(key, typed)
        if problem is not None:
            return f"has the key {key!r:.80}, which {problem}"
    return None


def _raw_problem(raw: msgspec.Raw) -> str | None:
    try:
        check(msgspec.json.decode(raw), typed=False)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidPayload) as problem:
        return f"is raw JSON that cannot be stored: {problem}"
    return None


def _leaf_problem(value: Any) -> str | None:
    # The encoder itself is asked, so that no list here goes stale. Containers never come here.
    if isinstance(value, int) and value.bit_length() < 64:
        return None
    try:
        ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError):
        return f"is of type {type(value).__name__} and has no JSON form: convert it first"
    return None


def _is_container(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple | msgspec.Struct) or hasattr(value, "model_fields_set"):
        return True
    return _attributes(value) is not None


def _attributes(value: Any) -> Iterable[str] | None:
    """The field names of an object that is encoded field by field."""
    if isinstance(value, type):
        return None
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if hasattr(value, "__attrs_attrs__"):
        return [field.name for field in value.__attrs_attrs__]
    return None


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield str(key), inner
    elif isinstance(value, list | tuple):
        yield from enumerate(value)
    elif hasattr(value, "model_fields_set"):
        yield from value
    else:
        for name in _attributes(value) or ():
            inner = getattr(value, name, msgspec.UNSET)
            if inner is not msgspec.UNSET:
                yield name, inner


def may_lose(payload_type: Any) -> bool:
    """Whether values of this type can encode in silence and read back as something else, or never end."""
    try:
        return _any_lossy(inspect.type_info(payload_type), ())
    except TypeError:
        return True


def _any_lossy(info: Any, outer: tuple[Any, ...]) -> bool:
    if isinstance(info, _LOSSY_TYPES):
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
    return any(_any_lossy(inner, outer) for inner in nested)
