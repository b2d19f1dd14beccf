"""Outboxes by the name under which Python finds them, as configuration files and migrations have to say it."""

from importlib import import_module
from typing import Any

from aftercommit.errors import DeclarationError
from aftercommit.postgres.shape import HasShape, Shape, shape_of

Declared = HasShape | Shape | str


def shape_named(outbox: Declared) -> Shape:
    """The shape of an outbox, given itself or as `package.module:name` (`package.module.name` will do, too)."""
    if not isinstance(outbox, str):
        return shape_of(outbox)
    module_name, colon, attribute = outbox.partition(":")
    if not colon:
        module_name, _, attribute = outbox.rpartition(".")
    if not module_name or not attribute:
        raise DeclarationError(f"outbox {outbox!r} should look like package.module:name")
    try:
        found = import_module(module_name)
    except ModuleNotFoundError as problem:
        # A module that is there but lacks something of its own is for its author to see whole.
        if problem.name is None or not (module_name == problem.name or module_name.startswith(f"{problem.name}.")):
            raise
        raise DeclarationError(
            f"outbox {outbox!r}: there is no module {problem.name!r} on the import path"
        ) from problem
    declared: Any = getattr(found, attribute, None)
    if not isinstance(declared, Shape) and not isinstance(getattr(declared, "shape", None), Shape):
        raise DeclarationError(
            f"outbox {outbox!r} is {declared!r:.80} and not an Outbox: name the one you publish with"
        )
    return shape_of(declared)
