"""Outboxes by the name under which Python finds them, as options, configuration files and migrations have to say it."""

from importlib import import_module
from typing import Any

from aftercommit.errors import DeclarationError
from aftercommit.postgres.shape import HasShape, Shape, shape_of

Declared = HasShape | Shape | str


def named(reference: str, said: str, *, searched: str = "on the import path") -> Any:
    """What `package.module:name` names; the name may lead on by dots. `said` and `searched` are for messages."""
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise DeclarationError(f"{said} should look like package.module:name")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as problem:
        # A module that is there but lacks something of its own is for its author to see whole.
        if problem.name is None or not f"{module_name}.".startswith(f"{problem.name}."):
            raise
        raise DeclarationError(f"{said}: there is no module {problem.name!r} {searched}") from problem
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise DeclarationError(f"{said}: {found!r:.80} has no attribute {name!r}")
        found = getattr(found, name)
    return found


def shape_named(outbox: Declared) -> Shape:
    """The shape of an outbox, given itself or as `package.module:name` (`package.module.name` will do, too)."""
    if not isinstance(outbox, str):
        return shape_of(outbox)
    said = f"outbox {outbox!r}"
    declared = named(outbox if ":" in outbox else ":".join(outbox.rsplit(".", 1)), said)
    if not isinstance(declared, Shape) and not isinstance(getattr(declared, "shape", None), Shape):
        raise DeclarationError(f"{said} is {declared!r:.80} and not an Outbox: name the one you publish with")
    return shape_of(declared)
