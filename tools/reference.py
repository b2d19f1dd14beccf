"""The reference page: every public name with its signature and one sentence, from the code alone.

Without arguments it writes `docs/reference.md` again; `--check` compares, and lists public names without a docstring
and signatures that name a private type.
"""

import argparse
import ast
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tools.public_names import (
    PACKAGES,
    Name,
    assignment,
    definition,
    fields_of,
    has_fields,
    initializer,
    is_made_by_hand,
    is_protocol,
    members,
    node_of,
    own,
    problems,
    public_classes,
    public_names,
)

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"

HEADER = """# Reference

`make reference` writes this page from the code. Import only the names that are listed here, from the package that
lists them. Everything else may change without notice.
[Why these packages](decisions/0021-layout-and-public-names.md).
"""

EMPTY = {"dict()": "{}", "list()": "[]", "tuple()": "()"}


def sentence(text: str | None) -> str:
    """The first sentence of a docstring."""
    first = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=[.:!?])\s+(?=[A-Z`])", first)[0].rstrip(":")


def signature(name: str, function: Any) -> str:
    """The signature as it is written, without the parameter that Python gives."""
    node = node_of(function)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {written(function.__module__, node.returns)}" if node.returns and name[0].islower() else ""
    if decorators & {"contextmanager", "asynccontextmanager"}:
        before, returns = f"{before}with ", ""
    return f"{before}{name}({', '.join(parameters(function.__module__, node.args))}){returns}"


def parameters(module: str, arguments: ast.arguments) -> Iterator[str]:
    """Each parameter, with its type and its default."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    for each, default in zip(positional, defaults, strict=True):
        if each.arg not in ("self", "cls"):
            yield parameter(module, each, default)
        if arguments.posonlyargs and each is arguments.posonlyargs[-1]:
            yield "/"
    if arguments.vararg:
        yield f"*{parameter(module, arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield parameter(module, each, default)
    if arguments.kwarg:
        yield f"**{parameter(module, arguments.kwarg, None)}"


def parameter(module: str, argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {written(module, argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}{default_of(module, default)}"


def default_of(module: str, default: ast.expr | None) -> str:
    """A default as it is written; a constant by its value, and a dataclass's factory by its call."""
    match default:
        case None:
            return ""
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            options = {keyword.arg: keyword.value for keyword in keywords}
            if "default_factory" in options:
                made = f"{quoted(options['default_factory'])}()"
                return f" = {EMPTY.get(made, made)}"
            return f" = {quoted(options['default'])}" if "default" in options else ""
        case ast.Name(id=name):
            value = getattr(importlib.import_module(module), name, None)
            return f" = {value!r}".replace("'", '"') if isinstance(value, int | float | str) else f" = {name}"
    return f" = {quoted(default)}"


def quoted(node: ast.expr) -> str:
    return ast.unparse(node).replace("'", '"')


def written(module: str, annotation: ast.expr) -> str:
    return quoted(Expanded.of(module, annotation))


class Expanded(ast.NodeTransformer):
    """An annotation whose private aliases are written out, and whose strings are types."""

    def __init__(self, module: str) -> None:
        self._module = module

    @classmethod
    def of(cls, module: str, annotation: ast.expr) -> ast.expr:
        node: ast.expr = cls(module).visit(ast.parse(ast.unparse(annotation), mode="eval").body)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return node if ast.unparse(node.value) == "Literal" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = definition(self._module, node.id)
        if found is None or any(each.name == node.id and not inspect.isclass(each.value) for each in public_names()):
            return node
        return Expanded.of(*found)


def constructor(name: str, cls: type) -> str | None:
    """How an instance is made; None where nobody makes one by hand, or the class adds nothing to its base."""
    if is_protocol(cls):
        return None
    if has_fields(cls) and not own(initializer(cls)):
        return f"{name}({', '.join(_field_parameters(cls))})"
    return signature(name, initializer(cls)) if is_made_by_hand(cls) else None


def _field_parameters(cls: type) -> Iterator[str]:
    kinds = inspect.signature(cls).parameters
    starred = False
    for name, module, node in fields_of(cls):
        if kinds[name].kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield f"{name}: {written(module, node.annotation)}{default_of(module, node.value)}"


def described(name: str, value: Any) -> tuple[str, str | None]:
    """The signature and the docstring of a method or property."""
    if not isinstance(value, property):
        return signature(name, value), value.__doc__
    returns = node_of(value.fget).returns
    return f"{name}: {written(value.fget.__module__, returns) if returns else 'Any'}", value.__doc__


def lines_of(name: Name) -> Iterator[str]:
    """The entry of one name."""
    value = name.value
    yield f"### `{name.name}`"
    yield ""
    if name.home != name.package:
        yield f"The same as in [`{name.home}`](#{anchor(name.home)})."
    elif inspect.isclass(value):
        yield from _class_lines(name, value)
    elif inspect.isfunction(value):
        yield f"`{signature(name.name, value)}`"
        yield ""
        yield sentence(value.__doc__)
    else:
        written, text = assignment(name)
        shown = written if len(written) <= 100 else f"{written[:100].rpartition(' ')[0]} …"
        yield f"`{shown}`"
        yield ""
        yield sentence(text)
    yield ""


def _class_lines(name: Name, cls: type) -> Iterator[str]:
    made = constructor(name.name, cls)
    bases = [f"`{base.__name__}`" for base in cls.__bases__ if base in public_classes()]
    kind = "A protocol." if is_protocol(cls) else ""
    extends = f"Extends {', '.join(bases)}." if bases else ""
    if made:
        yield f"`{made}`"
        yield ""
    yield " ".join(part for part in (sentence(cls.__doc__), kind, extends) if part)
    described_members = [described(*member) for member in members(cls, public_classes())]
    if described_members:
        yield ""
    for written, text in described_members:
        yield f"- `{written}`: {sentence(text)}"


def anchor(package: str) -> str:
    return package.replace(".", "")


def page() -> str:
    """The whole page."""
    lines = [HEADER, "| package | |", "|---|---|"]
    for package in PACKAGES:
        about = sentence(importlib.import_module(package).__doc__)
        lines.append(f"| [`{package}`](#{anchor(package)}) | {about} |")
    for package in PACKAGES:
        lines += ["", f"## `{package}`", ""]
        for name in sorted((n for n in public_names() if n.package == package), key=lambda n: n.name.lower()):
            lines += lines_of(name)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def difference() -> str:
    """How the page differs from what would be written; empty when it does not."""
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    before, after = written.splitlines(keepends=True), page().splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, fromfile=PAGE.name, tofile="what the code says"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing; status 1 when they differ")
    if not parser.parse_args(arguments).check:
        PAGE.write_text(page(), encoding="utf-8")
        print(f"wrote {PAGE}")
        return 0
    found = problems()
    for problem in found:
        print(f"problem: {problem}", file=sys.stderr)
    if changed := difference():
        print(changed)
        print("The reference is not what the code says: run `python -m tools.reference`.")
    return 1 if found or changed else 0


if __name__ == "__main__":
    sys.exit(main())
