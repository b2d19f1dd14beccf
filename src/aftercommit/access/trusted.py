"""Users by the header `X-User-Id`, from programs with a service token. A development server also accepts it from
programs on the same machine, until there is such a service token.

For a backend whose users are integers and whose clients are programs of the same team, such as a bot. A wrong
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

# The time to stop when the database does not answer.
END_SECONDS: Final = 0.5
LARGEST_USER: Final = 2**63 - 1
_NOBODY: Final = Permissions()
_USER: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_NAME: Final = r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?"
_THIS_MACHINE: Final = re.compile(_NAME, re.IGNORECASE | re.ASCII)
_PAGE_OF_THIS_MACHINE: Final = re.compile(f"https?://{_NAME}", re.IGNORECASE | re.ASCII)
# Headers of proxies: behind one, the peer's address says nothing about the client.
_FORWARDED: Final = frozenset(
    "forwarded via x-real-ip x-client-ip x-cluster-client-ip true-client-ip cf-connecting-ip "
    "x-original-forwarded-for".split()
)
_FORWARDED_PREFIX: Final = "x-forwarded"
# Hints that a development server gives to programs on this machine.
_MISSING: Final = "Add the header X-User-Id with the number of a user"
_NOT_ENOUGH: Final = (
    f"X-User-Id alone is not accepted, because there is a service token with the permission {ACT_AS_USER}: send that "
    "token as `Authorization: Bearer …` too, or revoke it"
)


class TrustedUsers(Service):
    """Authenticates users that are integers. It accepts:

    1. a service token with the permission `act-as-user`; `X-User-Id` names the user;
    2. a JWT, whose subject is the user; `X-User-Id` may repeat it;
    3. in `development` only: no Authorization; `X-User-Id` names the user. The request must come from this machine, and
       there must be no service token as in 1.

    Anything else is Unauthorized. An `X-User-Id` that is not a user gets 400, after the credential was accepted.

    Set `development` only in a server that listens on loopback and that you start on your own machine: behind a proxy,
    every request seems to come from the proxy's machine.

    As a service, it runs its `BearerAccess`.
    """

    name = "trusted users"
    vary = ("Authorization", "X-User-Id")

    def __init__(self, bearer: BearerAccess, *, development: bool = False) -> None:
        """It need not be started if something else runs `bearer`."""
        super().__init__()
        self._bearer = bearer
        self._development = development

    async def reader(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        """The user, or Unauthorized."""
        caller = await self.caller(authorization, headers, peer)
        named = headers.get(USER_HEADER)
        if is_program(caller):
            if named is None:
                hint = _MISSING if caller.token_id is None else None
                raise self._refused("the header X-User-Id is missing", hint)
            user = user_in(named)
            return msgspec.structs.replace(caller, user=user, rights=rights_of(user, caller.permissions))
        if not _is_user(caller.user):
            raise self._refused("the user of the token is not an integer")
        if named is not None and user_in(named) != caller.user:
            raise self._refused("X-User-Id and the token name different users")
        return caller

    def known_reader(self, authorization: str) -> Reader | None:
        """The user of a token that was verified before; None for a program, which has to name its user."""
        caller = self._bearer.known_reader(authorization)
        if caller is None or caller.service is not None:
            return None
        return caller if _is_user(caller.user) else None

    async def caller(self, authorization: str | None, headers: Mapping[str, str], peer: str | None = None) -> Reader:
        """The sender of the request: a program that may act on behalf of users (`is_program`), or a user."""
        if authorization is None:
            return await self._neighbour(headers, peer)
        own = {name: value for name, value in headers.items() if name != USER_HEADER}
        caller = await self._bearer.reader(authorization, own, peer)
        if caller.service is not None and not is_program(caller):
            raise self._refused(f"service token {caller.service} does not have the permission {ACT_AS_USER}")
        return caller

    def still_valid(self, reader: Reader) -> bool:
        """Whether the token is still valid; without a token, whether none is required yet."""
        if reader.token_id is None:
            return self._development and not self._bearer.service_tokens.grants(ACT_AS_USER)
        return self._bearer.still_valid(reader)

    def watch(self, call: Callable[[], None]) -> None:
        """Call this right after each read of service tokens and revocations."""
        self._bearer.watch(call)

    async def run(self) -> None:
        """Run the `BearerAccess` until stopped."""
        await self._bearer.start()
        try:
            await until_one_ends(self.stopping.wait(), self._bearer.wait())
        finally:
            await self._bearer.stop_within(END_SECONDS)

    async def _neighbour(self, headers: Mapping[str, str], peer: str | None) -> Reader:
        """A program on this machine, in development. Checked before the database, so that strangers cost no query."""
        if not self._development:
            raise self._refused("there is no Authorization header")
        if not is_local(headers, peer):
            raise self._refused("there is no Authorization header, and the request is not from this machine")
        if await self._bearer.grants(ACT_AS_USER):
            raise self._refused("there is no Authorization header, and a service token exists", _NOT_ENOUGH)
        return Reader("", _NOBODY, None, None, rights_of("", _NOBODY))

    def _refused(self, reason: str, hint: str | None = None) -> Unauthorized:
        log_event(logger, logging.DEBUG, "unauthorized", reason=reason)
        return Unauthorized(reason, hint)


def is_program(caller: Reader) -> bool:
    """Whether a caller may act on behalf of users: by its service token, or as a local program in development."""
    return caller.token_id is None or (caller.service is not None and caller.permissions.name(ACT_AS_USER))


def is_local(headers: Mapping[str, str], peer: str | None) -> bool:
    """Whether a request comes from this machine, is addressed to it, and did not pass a proxy.

    Host and Origin are checked, too: a web page from elsewhere can make a browser on this machine send requests here.
    """
    if peer is None or not is_loopback(peer) or not names_this_machine(headers.get("host", "")):
        return False
    origin = headers.get("origin")
    if origin is not None and _PAGE_OF_THIS_MACHINE.fullmatch(origin) is None:
        return False
    return not any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIX) for name in headers)


def names_this_machine(host: str) -> bool:
    """Whether a Host header is a loopback name or address."""
    return _THIS_MACHINE.fullmatch(host) is not None


def user_in(header: str) -> str:
    """The user in the header `X-User-Id`; 400 if it is not a positive integer."""
    text = header.strip(" \t")
    if not _is_user(text):
        raise bad_request(
            f"X-User-Id must be an integer from 1 to {LARGEST_USER}, in decimal digits; it was {text!r:.60}",
            **{"X-User-Id": text[:60]},
        )
    return text


def _is_user(text: str) -> bool:
    return _USER.fullmatch(text) is not None and int(text) <= LARGEST_USER
