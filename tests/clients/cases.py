"""The conformance cases, as pytest takes them."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFORMANCE = Path(__file__).parents[2] / "conformance"
# What the Python client has besides what every client has to have.
ABILITIES: frozenset[str] = frozenset()


# Every worker of pytest-xdist reads them before its first test, so they are read once, and by what is written in C.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def document(name: str) -> dict[str, Any]:
    """A whole file; not to be changed, since everybody has the same one."""
    loaded = yaml.load((CONFORMANCE / f"{name}.yaml").read_text(encoding="utf-8"), Loader=LOADER)  # noqa: S506
    assert isinstance(loaded, dict)
    return loaded


def cases(name: str) -> list[Any]:
    """The cases of a file that concern the Python client, each under its own name."""
    return [
        pytest.param(case, id=case["name"])
        for case in document(name)["cases"]
        if ABILITIES.issuperset(case.get("needs", ()))
    ]
