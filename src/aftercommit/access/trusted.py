"""Users by the header `X-User-Id`: believed from a program that shows a service token. A server that was started for
development also believes programs on the same machine, until such a token is made.

For a backend whose users are integers and whose callers are programs of the same team, a bot for one. Who shows a wrong
credential is refused, whatever the header says and wherever the request comes from.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from aftercommit.access.bearer import USER_HEADER, BearerAccess
from aftercommit.access.permissions import Permissions
from aftercommit.access.reader import Reader, rights_of
from aftercommit.access.service_tokens import ACT_AS_USER
from aftercommit.errors import Unauthorized
from aftercommit.http.asgi import is_loopback
from aftercommit.http.errors import bad_request
from aftercommit.service import Service, until_one_ends
from aftercommit.telemetry import log_event

logger = logging.getLogger("aftercommit.access")

# How long its end may take, should the database not answer.
END_SECONDS: Final = 0.5
LARGEST_USER: Final = 2**63 - 1
_NOBODY: Final = Permissions()
_USER: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_NAME: Final = r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?"
_THIS_MACHINE: Final = re.compile(_NAME, re.IGNORECASE | re.ASCII)
_PAGE_OF_THIS_MACHINE: Final = re.compile(f"https?://{_NAME}", re.IGNORECASE | re.ASCII)
# Somebody stands between us and whoever asks: the near end of the connection says nothing about the far one.
_FORWARDED: Final = frozenset(
    "forwarded via x-real-ip x-client-ip x-cluster-client-ip true-client-ip cf-connecting-ip "
    "x-original-forwarded-for".split()
)
_FORWARDED_PREFIX: Final = "x-forwarded"
# What a program of this machine hears from a development server.
_MISSING: Final = "Add the header X-User-Id with the number of a user"
_NOT_ENOUGH: Final = (
    f"X-User-Id alone is not believed, because there is a service token with the permission {ACT_AS_USER}: send that "
    "token as `Authorization: Bearer …` too, or revoke it"
)


class TrustedUsers(Service):
    """Who asks, where users are integers. In this order:

    a service token with the permission `act-as-user`, and the user that `X-User-Id` names; a JWT, and the user that it
    speaks of, whom `X-User-Id` may repeat; in `development` alone, no Authorization, and `X-User-Id`, from this machine
    and only while there is no service token of that kind. Anything else is Unauthorized. A header that is no user is
    answered 400, once the credential is known to be good.

    Set `development` only in a server that listens on loopback and that you start on your own machine. Where a request
    seems to come from proves nothing: behind a proxy, everybody comes from the proxy.

    As a service it runs the bearer access that it asks.
    """

    name = "trusted users"
    vary = ("Authorization", "X-User-Id")

    def __init__(self, bearer: BearerAccess, *, development: bool = False) -> None:
        """Not started; where `bearer` is run by somebody else this need not be."""
        super().__init__()
        self._bearer = bearer
        self._development = development

    async def reader(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        """The user, otherwise Unauthorized."""
        caller = await self.caller(authorization, headers, peer)
        named = headers.get(USER_HEADER)
        if is_program(caller):
            if named is None:
                hint = _MISSING if caller.token_id is None else None
                raise self._refused("no X-User-Id says on whose behalf it is asked", hint)
            user = user_in(named)
            return msgspec.structs.replace(caller, user=user, rights=rights_of(user, caller.permissions))
        if _USER.fullmatch(caller.user) is None or int(caller.user) > LARGEST_USER:
            raise self._refused("the user of the token is no integer")
        if named is not None and user_in(named) != caller.user:
            raise self._refused("X-User-Id names somebody else than the token")
        return caller

    async def caller(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        """Whoever sends the request: a program that may say on whose behalf it asks (`is_program`), or a user."""
        if authorization is None:
            return await self._neighbour(headers, peer)
        own = {name: value for name, value in headers.items() if name != USER_HEADER}
        caller = await self._bearer.reader(authorization, own, peer)
        if caller.service is not None and not is_program(caller):
            raise self._refused(f"service token {caller.service} does not have the permission {ACT_AS_USER}")
        return caller

    def still_valid(self, reader: Reader) -> bool:
        """Whether the token still stands; without one, whether there is still none that would be needed."""
        if reader.token_id is None:
            return self._development and not self._bearer.service_tokens.grants(ACT_AS_USER)
        return self._bearer.still_valid(reader)

    def watch(self, call: Callable[[], None]) -> None:
        """Call this whenever it was read anew who may come in."""
        self._bearer.watch(call)

    async def run(self) -> None:
        """Run the bearer access until stopped."""
        await self._bearer.start()
        try:
            await until_one_ends(self.stopping.wait(), self._bearer.wait())
        finally:
            await self._bearer.stop_within(END_SECONDS)

    async def _neighbour(self, headers: Mapping[str, str], peer: str | None) -> Reader:
        """A program of this machine, in development. Asked before the database is: strangers cost nothing."""
        if not self._development:
            raise self._refused("there is no Authorization header")
        if not is_local(headers, peer):
            raise self._refused("there is no Authorization header, and the request is not from this machine")
        if await self._bearer.grants(ACT_AS_USER):
            raise self._refused("there is no Authorization header, and a service token is configured", _NOT_ENOUGH)
        return Reader("", _NOBODY, None, None, rights_of("", _NOBODY))

    def _refused(self, reason: str, hint: str | None = None) -> Unauthorized:
        log_event(logger, logging.DEBUG, "unauthorized", reason=reason)
        return Unauthorized(reason, hint)


def is_program(caller: Reader) -> bool:
    """Whether a caller may say on whose behalf it asks: by its service token, or as a neighbour in development."""
    return caller.token_id is None or (caller.service is not None and caller.permissions.name(ACT_AS_USER))


def is_local(headers: Mapping[str, str], peer: str | None) -> bool:
    """Whether a request comes from this machine, is meant for it, and nobody has passed it on.

    A page elsewhere may have its name point here, or ask from here through a browser: then Host or Origin is another.
    """
    if peer is None or not is_loopback(peer) or not names_this_machine(headers.get("host", "")):
        return False
    origin = headers.get("origin")
    if origin is not None and _PAGE_OF_THIS_MACHINE.fullmatch(origin) is None:
        return False
    return not any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIX) for name in headers)


def names_this_machine(host: str) -> bool:
    """Whether a Host header is a name that only this machine itself uses for it."""
    return _THIS_MACHINE.fullmatch(host) is not None


def user_in(header: str) -> str:
    """The user that the header names, as audiences and keys write it; 400 when it is none."""
    text = header.strip(" \t")
    if _USER.fullmatch(text) is None or int(text) > LARGEST_USER:
        raise bad_request(
            f"X-User-Id must be an integer from 1 to {LARGEST_USER}, in decimal digits; it was {text!r:.60}",
            **{"X-User-Id": text[:60]},
        )
    return text
