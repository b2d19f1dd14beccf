"""Assertions about published events; a failure shows what was published."""

from collections.abc import Sequence

from aftercommit.event.registry import Registry
from aftercommit.testing.expectations import Expected, first_missing, listed, matching, nearest
from aftercommit.testing.published import Published


def require_published(
    expected: Expected, published: Sequence[Published], registry: Registry, count: int | None, remark: str | None
) -> list[Published]:
    """The matching events: exactly `count`, or at least one."""
    __tracebackhide__ = True
    # An undeclared name is an error, not an event that was not published.
    expected.type_in(registry)
    found = matching(expected, published, registry)
    if len(found) == count or (count is None and found):
        return found
    wanted = "was not published" if count is None else f"was published {_times(len(found))}, expected {_times(count)}"
    hints = [] if found else nearest(expected, published, registry)
    raise AssertionError(_message(f"{expected} {wanted}", [*hints, *listed(published)], remark))


def require_not_published(expected: Expected | None, published: Sequence[Published], registry: Registry) -> None:
    """No event matches; with None, there is no event at all."""
    __tracebackhide__ = True
    if expected is None:
        if published:
            raise AssertionError(_message("something was published", listed(published), None))
        return
    expected.type_in(registry)
    found = matching(expected, published, registry)
    if found:
        raise AssertionError(_message(f"{expected} was published {_times(len(found))}", listed(published), None))


def require_in_order(
    expected: Sequence[Expected], published: Sequence[Published], registry: Registry, only: bool, remark: str | None
) -> list[Published]:
    """The matching events in this order; with `only`, there are no other events."""
    __tracebackhide__ = True
    for each in expected:
        each.type_in(registry)
    found, missing = first_missing(expected, published, registry)
    order = " → ".join(str(each) for each in expected)
    if missing is not None:
        problem = f"number {missing + 1}, {expected[missing]}, is missing{' after those before it' if missing else ''}"
        hints = nearest(expected[missing], published, registry)
        raise AssertionError(_message(f"{order}: {problem}", [*hints, *listed(published)], remark))
    if only and len(found) != len(published):
        others = len(published) - len(found)
        problem = f"{others} other event{'s were' if others > 1 else ' was'} published"
        raise AssertionError(_message(f"{order}: {problem}", listed(published), None))
    return found


def _message(problem: str, lines: Sequence[str], remark: str | None) -> str:
    return "\n".join([problem, *(f"  {line}" for line in lines), *([f"  {remark}"] if remark else [])])


def _times(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")
