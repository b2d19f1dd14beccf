"""Encodes payloads as JSON and back: dataclasses, msgspec Structs, TypedDicts, pydantic models and dicts.

Encoding validates: a payload that the declared type could not read back is refused. Payloads need no base class.
"""

import dataclasses
import operator
import re
from collections.abc import Mapping
from typing import Any, NoReturn, Protocol, is_typeddict

import msgspec

from aftercommit.errors import DeclarationError, InvalidPayload, MissingExtra, UnreadableEvent
from aftercommit.event import json_rules
from aftercommit.event.json_rules import dotted

_PLACE = re.compile(r" - at (?:`key` in )?`([^`]+)`$")
_encode = json_rules.ENCODER.encode

_MISSING_FIELD = re.compile(r"required field `(.+?)`")


class Codec(Protocol):
    """Turns payloads of one type into JSON bytes and back."""

    fields: frozenset[str] | None

    def build(self, fields: Mapping[str, Any]) -> Any:
        """A payload from its fields."""
        ...

    def encode(self, payload: Any) -> bytes:
        """The payload as JSON, or InvalidPayload."""
        ...

    def decode(self, data: bytes) -> Any:
        """The payload back from JSON, or UnreadableEvent."""
        ...

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema of the payload."""
        ...


def codec_for(payload_class: type[Any] | None, schema: Mapping[str, Any] | None) -> Codec:
    """The codec for a dataclass, Struct, pydantic model or TypedDict, or for dicts under a JSON Schema."""
    if payload_class is None or payload_class is dict:
        return DictCodec(schema)
    if schema is not None:
        raise DeclarationError(f"{payload_class!r} already has types: give a payload class or a schema, not both")
    if hasattr(payload_class, "model_validate_json"):
        return PydanticCodec(payload_class)
    is_struct = isinstance(payload_class, type) and issubclass(payload_class, msgspec.Struct)
    if is_struct or dataclasses.is_dataclass(payload_class) or is_typeddict(payload_class):
        return MsgspecCodec(payload_class)
    raise DeclarationError(
        f"{payload_class!r} cannot be a payload: use a dataclass, msgspec.Struct, pydantic model, TypedDict, "
        "or a dict with schema={...}"
    )


def _encoded(payload: Any) -> bytes:
    try:
        return json_rules.ENCODER.encode(payload)
    except RecursionError:
        raise InvalidPayload("the payload is nested too deeply or contains itself: flatten it", field="$") from None
    except (TypeError, ValueError, OverflowError, NotImplementedError) as problem:
        json_rules.check(payload, typed=True)
        raise InvalidPayload(f"the payload is not JSON: {problem}", field="$") from problem


def _refuse_nul(data: bytes) -> None:
    # A cheap scan first: the full check runs only if the bytes contain the escape, or something that looks like it.
    if b"\\u0000" in data:
        json_rules.check(msgspec.json.decode(data), typed=False)


def _invalid(problem: Exception, name: str) -> InvalidPayload:
    text = str(problem)
    place = _PLACE.search(text)
    missing = _MISSING_FIELD.search(text)
    field = place.group(1) if place else "$"
    if missing:
        field = f"{field}.{missing.group(1)}"
    return InvalidPayload(f"{name}: {text}", field=field)


def _unreadable(name: str, problem: Exception) -> NoReturn:
    raise UnreadableEvent(f"{name} cannot be read: {problem}") from problem


class MsgspecCodec:
    """Dataclasses, msgspec Structs and TypedDicts."""

    def __init__(self, payload_class: type[Any]) -> None:
        """Makes the decoder of the class once."""
        self.payload_class = payload_class
        try:
            self._decode = msgspec.json.Decoder(payload_class).decode
            info: Any = msgspec.inspect.type_info(payload_class)
        except (TypeError, NameError) as problem:
            raise DeclarationError(f"{payload_class.__name__} cannot be read back from JSON: {problem}") from problem
        self._careful = json_rules.may_lose(payload_class)
        self._has_floats = json_rules.has_floats(payload_class)
        self.fields: frozenset[str] | None = frozenset(field.name for field in info.fields)
        self._plain = json_rules.plain_types(payload_class)
        self._values: Any = operator.attrgetter(*(field.name for field in info.fields)) if self._plain else None

    def build(self, fields: Mapping[str, Any]) -> Any:
        """The payload object from its fields."""
        try:
            return self.payload_class(**fields)
        except (TypeError, ValueError) as problem:
            raise InvalidPayload(f"{self.payload_class.__name__}: {problem}", field="$") from problem

    def encode(self, payload: Any) -> bytes:
        """JSON bytes that decode to the declared type."""
        if self._careful:
            json_rules.check(payload, typed=True)
        # The hot path of publish: no call that can be avoided.
        try:
            data = _encode(payload)
        except (TypeError, ValueError, OverflowError, NotImplementedError, RecursionError):
            data = _encoded(payload)
        if self._has_floats and not self._careful and b"null" in data:
            # NaN and Infinity are encoded as null, which a field that may be None would accept.
            json_rules.check(payload, typed=True)
        if b"\\" in data:
            _refuse_nul(data)
        # Most events need no decoding as a check, which halves the time.
        if self._plain is not None and type(payload) is self.payload_class:
            try:
                if tuple(map(type, self._values(payload))) == self._plain:
                    return data
            except AttributeError:
                pass
        try:
            self._decode(data)
        except msgspec.DecodeError as problem:
            raise _invalid(problem, self.payload_class.__name__) from problem
        return data

    def decode(self, data: bytes) -> Any:
        """The typed payload."""
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            _unreadable(self.payload_class.__name__, problem)

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema derived from the annotations."""
        return msgspec.json.schema(self.payload_class)


class PydanticCodec:
    """Pydantic models (version 2)."""

    def __init__(self, payload_class: Any) -> None:
        self.payload_class = payload_class
        self.fields: frozenset[str] | None = frozenset(payload_class.model_fields)

    def build(self, fields: Mapping[str, Any]) -> Any:
        """The model from its fields, validated by pydantic."""
        try:
            return self.payload_class(**fields)
        except ValueError as problem:
            raise self._refused(problem) from problem

    def encode(self, payload: Any) -> bytes:
        """JSON bytes that validate as the model again (a model may have been changed after validation)."""
        model = self.build(payload) if isinstance(payload, Mapping) else payload
        if not isinstance(model, self.payload_class):
            raise InvalidPayload(
                f"the payload is {payload!r:.80}, which is not a {self.payload_class.__name__}", field="$"
            )
        json_rules.check(model, typed=True)
        try:
            # By alias, because validation reads aliases.
            data: bytes = model.model_dump_json(by_alias=True, warnings=False).encode()
            self.payload_class.model_validate_json(data)
        except ValueError as problem:
            raise self._refused(problem) from problem
        _refuse_nul(data)
        return data

    def decode(self, data: bytes) -> Any:
        """The validated model."""
        try:
            return self.payload_class.model_validate_json(data)
        except ValueError as problem:
            _unreadable(self.payload_class.__name__, problem)

    def json_schema(self) -> dict[str, Any]:
        """JSON Schema made by pydantic."""
        schema: dict[str, Any] = self.payload_class.model_json_schema()
        return schema

    def _refused(self, problem: ValueError) -> InvalidPayload:
        errors = getattr(problem, "errors", None)
        first = errors()[0] if callable(errors) else {"loc": (), "msg": str(problem)}
        field = dotted(first["loc"])
        return InvalidPayload(f"{self.payload_class.__name__}: {first['msg']} - at `{field}`", field=field)


class DictCodec:
    """Plain dicts, checked against a JSON Schema when one is given."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        """Checks the schema itself, so that a mistake in it shows at the declaration."""
        self.schema = dict(schema) if schema is not None else None
        self.fields: frozenset[str] | None = None
        self._check = _SchemaCheck(self.schema) if self.schema is not None else None

    def build(self, fields: Mapping[str, Any]) -> Any:
        """The fields as a dict."""
        return dict(fields)

    def encode(self, payload: Any) -> bytes:
        """JSON bytes of the dict, if it satisfies the schema."""
        if not isinstance(payload, Mapping):
            raise InvalidPayload(f"the payload must be a dict, not {type(payload).__name__}", field="$")
        json_rules.check(payload, typed=False)
        data = _encoded(payload)
        _refuse_nul(data)
        if self._check is not None:
            # Validate the encoded form, in which UUIDs, datetimes and the like are strings.
            self._check.refuse(msgspec.json.decode(data))
        return data

    def decode(self, data: bytes) -> Any:
        """The dict."""
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            _unreadable("the payload", problem)

    def json_schema(self) -> dict[str, Any]:
        """The declared schema, or "any object"."""
        return self.schema if self.schema is not None else {"type": "object"}


class _SchemaCheck:
    """A JSON Schema ready to be used on many payloads."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            import jsonschema
            from referencing import Registry
            from referencing.exceptions import Unresolvable
        except ImportError:
            raise MissingExtra("jsonschema", "jsonschema") from None
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as problem:
            raise DeclarationError(f"the JSON Schema is not valid: {problem.message}") from problem
        # An empty registry, so that publish never fetches a referenced schema from the network.
        self._validator: Any = jsonschema.Draft202012Validator(schema, registry=Registry())
        self._unresolvable = Unresolvable

    def refuse(self, instance: Any) -> None:
        """Raise InvalidPayload for the first violation of the schema."""
        try:
            problem = next(self._validator.iter_errors(instance), None)
        except self._unresolvable as missing:
            raise DeclarationError(
                f"the JSON Schema refers to {missing.ref!r}, which is outside of it: copy that part into $defs"
            ) from missing
        if problem is None:
            return
        field = dotted(problem.absolute_path)
        if problem.validator == "required":
            field += "." + next(name for name in problem.validator_value if name not in problem.instance)
        raise InvalidPayload(f"{problem.message:.500} - at `{field}`", field=field)
