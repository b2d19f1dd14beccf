"""The check of the tokens by which programs name users: without one, a header names nobody."""

from collections.abc import Iterator

from aftercommit.operate.doctor.findings import Check, CheckContext, CheckProblem, problem, warning

_ACT_AS_USER = "act-as-user"


def _service_tokens(context: CheckContext) -> Iterator[CheckProblem]:
    tokens = context.rows("service_tokens")
    states = [state for _id, _name, permissions, *_, state in tokens if _ACT_AS_USER in permissions]
    make = f"`aftercommit token create bot --may {_ACT_AS_USER} --schema {context.shape.schema}`"
    if context.users_by_header and all(state == "revoked" for state in states):
        yield problem(
            "the header X-User-Id names the readers, and no service token may name them: `serve` does not start, "
            "and a running server answers 401",
            f"make one with {make} and give it to the program that sends the header",
        )
    elif "expired" in states and "valid" not in states:
        yield warning(
            "every service token that may name users has expired: requests with one are answered 401",
            f"make a new one with {make}, then revoke the old ones",
        )


SERVICE_TOKENS = Check(
    "service tokens", "programs that name users by X-User-Id have a valid token, if any do", _service_tokens
)
