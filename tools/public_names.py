"""What users may import: the public packages, the names that they export, and what is wrong with those."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

ROOT = "aftercommit"

# Everything that users may import from. What a package exports is its `__all__`; of a module, what it defines.
PACKAGES = (
    "aftercommit",
    "aftercommit.errors",
    "aftercommit.feed",
    "aftercommit.access",
    "aftercommit.http",
    "aftercommit.server",
    "aftercommit.redaction",
    "aftercommit.client",
    "aftercommit.operate",
    "aftercommit.postgres",
    "aftercommit.embedded",
    "aftercommit.testing",
    "aftercommit.contrib.alembic",
    "aftercommit.contrib.django",
    "aftercommit.contrib.prometheus",
    "aftercommit.contrib.telegram",
)

# Types that public signatures name although nobody imports them, and why.
INTERNAL_TYPES: Mapping[str, str] = {
    "Carrier": "a relay makes its own",
    "Codec": "made from the payload's class",
    "FetchedPage": "what a Wire makes of an answer; read() and follow() give its events",
    "HandOver": "a LogWorker has one, and an Engine passes it on",
    "Handler": "`@outbox.on` makes it",
    "HasShape": "an Outbox is one",
    "HeldVersion": "feeds set it while newer code is needed; nobody makes one",
    "KeySet": "TokenKeys reads it from a JWK set",
    "LogFacet": "a feed makes it from its filters",
    "Meter": "every outbox has one",
    "ProbedEngine": "an Engine is one",
    "Registry": "an Outbox has one and passes it on",
    "SharedConnections": "an Engine makes it for its outboxes",
    "StateDriver": "open_store() chooses it",
    "StoredEvent": "a feed hands it to its selection",
    "Suite": "the type of the suite's own `self`",
    "Switchboard": "a BotApiServer has one",
    "_Probes": "serve() makes it",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Name:
    """One exported name, and the package that is its home."""

    package: str
    name: str
    value: Any
    home: str


def exported(package: str) -> list[str]:
    """The public names of a package, or of a module that has no `__all__`."""
    module = importlib.import_module(package)
    listed: Sequence[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    return [node.name for node in tree_of(module).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


@cache
def public_names() -> tuple[Name, ...]:
    """Every public name. One that two packages export is at home where it is defined, or nearest to that."""
    found = [(package, name) for package in PACKAGES for name in exported(package)]
    values = {each: getattr(importlib.import_module(each[0]), each[1]) for each in found}
    return tuple(Name(package, name, values[package, name], _home(package, name, values)) for package, name in found)


def _home(package: str, name: str, values: Mapping[tuple[str, str], Any]) -> str:
    value = values[package, name]
    defined = getattr(value, "__module__", None) or package
    homes = [other for other, same in values if same == name and values[other, same] is value]
    return max(homes, key=lambda other: (f"{defined}.".startswith(f"{other}."), len(other)))


def public_classes() -> frozenset[type]:
    return frozenset(each.value for each in public_names() if inspect.isclass(each.value))


@cache
def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def node_of(function: Any) -> Function:
    """How a function is written."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, Function), function
    return node


def class_node(cls: type) -> ast.ClassDef:
    node = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(node, ast.ClassDef), cls
    return node


def own(function: Any) -> bool:
    """Whether it is a function of ours that somebody wrote; a dataclass writes its own without a file."""
    if not inspect.isfunction(function) or not function.__module__.startswith(ROOT):
        return False
    return not inspect.unwrap(function).__code__.co_filename.startswith("<")


def is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def has_fields(cls: type) -> bool:
    return any(hasattr(cls, mark) for mark in ("__dataclass_fields__", "__struct_fields__", "_fields"))


def fields_of(cls: type) -> list[tuple[str, str, ast.AnnAssign]]:
    """Name, module and line of each field of a dataclass, a struct or a named tuple."""
    found: dict[str, tuple[str, str, ast.AnnAssign]] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith(ROOT):
            continue
        for node in class_node(base).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
                found[node.target.id] = (node.target.id, base.__module__, node)
    return [found[name] for name in inspect.signature(cls).parameters if name in found]


def initializer(cls: type) -> Any:
    return next(vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base))


def is_made_by_hand(cls: type) -> bool:
    """Whether somebody wrote the constructor; protocols have none."""
    return not is_protocol(cls) and own(initializer(cls))


def members(cls: type, public: frozenset[type]) -> Iterator[tuple[str, Any]]:
    """The methods and properties to describe: its own, and those of bases that have no entry themselves."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith(ROOT) or (base is not cls and base in public):
            continue
        for name, value in vars(base).items():
            if name[0] == "_" or name in seen:
                continue
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            plain = getattr(plain, "func", plain) if type(plain).__name__ == "cached_property" else plain
            if own(plain) or isinstance(plain, property):
                seen.add(name)
                yield name, plain


@cache
def definition(module: str, name: str) -> tuple[str, ast.expr] | None:
    """What an alias of ours stands for, and the module that says so; None for everything else."""
    for node in ast.walk(tree_of(importlib.import_module(module))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOT):
            if any((alias.asname or alias.name) == name for alias in node.names):
                return definition(node.module or "", name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if [ast.unparse(target) for target in targets] == [name]:
                is_variable = isinstance(node.value, ast.Call)
                return None if is_variable else (module, node.value)
    return None


def assignment(name: Name) -> tuple[str, str | None]:
    """A constant or an alias as it is written, and the string below it, which is its docstring."""
    module, origin = name.home, name.name
    while True:
        body = tree_of(importlib.import_module(module)).body
        for position, node in enumerate(body):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            if [ast.unparse(target) for target in targets] == [origin]:
                return ast.unparse(node), _string(body[position + 1 : position + 2])
        module, origin = _imported(body, origin, name)


def _string(nodes: Sequence[ast.stmt]) -> str | None:
    match nodes:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            return text
    return None


def _imported(body: Sequence[ast.stmt], origin: str, name: Name) -> tuple[str, str]:
    for node in body:
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom):
                for alias in inner.names:
                    if (alias.asname or alias.name) == origin:
                        return inner.module or "", alias.name
    raise LookupError(f"{name.package} does not say where {name.name} comes from")


def undocumented() -> Iterator[str]:
    """Public names, and methods of them, that nobody has described."""
    for name in public_names():
        if name.home != name.package:
            continue
        where = f"{name.package}.{name.name}"
        if inspect.isclass(name.value):
            doc = vars(name.value).get("__doc__")
            if not doc or doc.startswith(f"{name.name}("):
                yield f"{where} has no docstring"
            for member, value in members(name.value, public_classes()):
                if not value.__doc__:
                    yield f"{where}.{member} has no docstring"
        elif not (name.value.__doc__ if inspect.isfunction(name.value) else assignment(name)[1]):
            yield f"{where} has no docstring"


def not_public_types() -> Iterator[str]:
    """Types of ours that a public signature names and that no public package exports."""
    public = [name.value for name in public_names()]
    for name in public_names():
        if name.home != name.package or not (inspect.isclass(name.value) or inspect.isfunction(name.value)):
            continue
        for module, annotation in annotations(name.value):
            for where, used in names_in(module, annotation):
                origin = resolved(where, used)
                if origin is not None and not any(origin is value for value in public) and used not in INTERNAL_TYPES:
                    yield f"{name.package}.{name.name} names {used}, which no public package exports"


def annotations(value: Any) -> Iterator[tuple[str, ast.expr]]:
    """The annotations of every signature of a class or function, with the module that they are written in."""
    if inspect.isfunction(value):
        yield from _annotations(value)
        return
    if has_fields(value) and not own(initializer(value)):
        for _, module, field in fields_of(value):
            yield module, field.annotation
    elif is_made_by_hand(value):
        yield from _annotations(initializer(value))
    for _, member in members(value, public_classes()):
        yield from _annotations(member.fget if isinstance(member, property) else member)


def _annotations(function: Any) -> Iterator[tuple[str, ast.expr]]:
    node = node_of(function)
    arguments = node.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    for annotation in [*(each.annotation for each in listed if each is not None), node.returns]:
        if annotation is not None:
            yield function.__module__, annotation


def names_in(module: str, annotation: ast.expr) -> Iterator[tuple[str, str]]:
    """The names of an annotation, and of the private aliases in it, each with the module that it is written in."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            yield module, node.value
        elif isinstance(node, ast.Name):
            found = definition(module, node.id)
            if found is None:
                yield module, node.id
            else:
                yield from names_in(*found)


def resolved(module: str, name: str) -> Any:
    """The class of ours that a name in an annotation means; None if it is not ours."""
    value = getattr(importlib.import_module(module), name, None)
    if value is None:
        for node in ast.walk(tree_of(importlib.import_module(module))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOT):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        value = getattr(importlib.import_module(node.module or ""), alias.name)
    return value if inspect.isclass(value) and value.__module__.startswith(ROOT) else None


def problems() -> list[str]:
    """Everything that is wrong with the public names."""
    return sorted({*undocumented(), *not_public_types()})
