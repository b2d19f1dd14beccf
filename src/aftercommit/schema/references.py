"""Finds outboxes by their Python name, `package.module:name`, as options and configuration files give it."""

from importlib import import_module
from typing import Any

from aftercommit.errors import DeclarationError
from aftercommit.postgres.shape import HasShape, Shape, shape_of

Declared = HasShape | Shape | str


def named(reference: str, said: str, *, searched: str = "on the import path") -> Any:
    """The object that `package.module:name` names; `name` may contain dots. `said` and `searched` are for messages."""
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise DeclarationError(f"{said} should look like package.module:name")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as problem:
        # The module exists, but one of its own imports fails: show its author the whole error.
        if problem.name is None or not f"{module_name}.".startswith(f"{problem.name}."):
            raise
        raise DeclarationError(f"{said}: there is no module {problem.name!r} {searched}") from problem
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise DeclarationError(f"{said}: {found!r:.80} has no attribute {name!r}")
        found = getattr(found, name)
    return found


def shape_named(outbox: Declared) -> Shape:
    """The shape of an outbox, given as an object or as `package.module:name` (or `package.module.name`)."""
    if not isinstance(outbox, str):
        return shape_of(outbox)
    said = f"outbox {outbox!r}"
    declared = named(outbox if ":" in outbox else ":".join(outbox.rsplit(".", 1)), said)
    if not isinstance(declared, Shape) and not isinstance(getattr(declared, "shape", None), Shape):
        raise DeclarationError(f"{said} is {declared!r:.80}, not an Outbox: name the Outbox that you publish with")
    return shape_of(declared)
