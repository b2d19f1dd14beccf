"""The planted bugs of `make planted` keep their places in the code; whether they are caught is that target's work."""

import ast

import pytest

from tools.planted import BUGS, ROOT, Bug


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_has_its_place_and_its_test(bug: Bug):
    assert (ROOT / bug.file).read_text().count(bug.right) == 1
    file, _, name = bug.test.partition("::")
    tests = [node for node in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(node, "name")]
    assert name.rpartition("::")[2] in {node.name for node in tests}
