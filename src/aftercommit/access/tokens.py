"""Verifies JWTs, and keeps verified ones until they expire.

The algorithm is the key's, not the token's. Issuer, audience, subject and expiry are required. A client gets the same
response whatever is wrong with its token.
"""

import hashlib
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from aftercommit.access.permissions import MOST, Permissions, checked
from aftercommit.access.reader import Reader, rights_of
from aftercommit.access.token_keys import TOKEN_KEYS_FILE_VARIABLE, TOKEN_KEYS_VARIABLE, KeySet, TokenKey, TokenKeys
from aftercommit.errors import DeclarationError, MissingExtra, Unauthorized
from aftercommit.telemetry import log_event

try:
    import jwt
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "jwt") from problem

logger = logging.getLogger("aftercommit.tokens")

# The compact form of RFC 7515. Any other text is refused before it reaches a decoder.
_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
# What a decoder may raise for hostile input: its own errors, and those of JSON and base64.
_UNREADABLE = (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
_REQUIRED = ["exp", "iss", "aud", "sub"]
LONGEST_USER = 255
LONGEST_ID = 255
# The year 9999, in seconds. The comparison with it also refuses NaN and infinity.
LATEST = 253_402_300_800
LONGEST_LIFE = timedelta(days=3650)


class _VerifiedReader(msgspec.Struct, frozen=True):
    """The reader of a verified token, and the generation of the keys at that time."""

    reader: Reader
    not_before: float
    generation: int


class TokenVerifier:
    """Turns JWTs into readers. `permissions` is the claim with the permissions (a list, or words in a string), or a
    function that computes them from all claims.

    `leeway_seconds` allows for clocks that differ. Up to `max_kept_tokens` verified tokens are kept, so that the next
    request with the same token costs a dictionary lookup; expiry and key changes still count.
    """

    def __init__(
        self,
        keys: TokenKeys | None,
        *,
        issuer: str | None = None,
        audience: str | None = None,
        permissions: str | Callable[[Mapping[str, Any]], Iterable[str]] = "permissions",
        leeway_seconds: float = 30.0,
        max_token_bytes: int = 8192,
        max_kept_tokens: int = 4096,
    ) -> None:
        """Issuer and audience are given here or in the JWK set: without them, any token of the issuer would pass."""
        if keys is None:
            raise DeclarationError(
                f"no keys to check tokens with: set {TOKEN_KEYS_FILE_VARIABLE} (path of a JWK set) or "
                f"{TOKEN_KEYS_VARIABLE} (the set itself)"
            )
        self._issuer = issuer or keys.current.issuer or ""
        self._audience = audience or keys.current.audience or ""
        if not self._issuer or not self._audience:
            raise DeclarationError(
                "TokenVerifier needs an issuer and an audience: give issuer= and audience=, or add both to the JWK set"
            )
        if not 0 <= leeway_seconds <= 600 or max_token_bytes < 100 or max_kept_tokens < 1:
            given = f"{leeway_seconds=}, {max_token_bytes=}, {max_kept_tokens=}"
            raise DeclarationError(f"{given}: use 0 to 600 s, at least 100 bytes and at least 1 token")
        self._keys, self._claim = keys, permissions
        self._leeway, self._longest, self._keep = leeway_seconds, max_token_bytes, max_kept_tokens
        self._known: dict[str, _VerifiedReader] = {}

    def verify(self, token: str) -> Reader:
        """The reader of a token, or Unauthorized."""
        keys = self._keys.look()
        known = self._known.pop(token, None)
        if known is None or known.generation != self._keys.generation:
            known = self._verified(token, keys)
        now = time.time()
        # `expires_at` includes the leeway.
        if now >= (known.reader.expires_at or 0.0):
            raise Unauthorized("the token has expired")
        if now < known.not_before:
            raise Unauthorized("the token is not valid yet")
        self._remember(token, known)
        return known.reader

    def known(self, token: str) -> Reader | None:
        """The reader of a token that was verified before and is valid now; otherwise None."""
        self._keys.look()
        kept = self._known.pop(token, None)
        if kept is None or kept.generation != self._keys.generation:
            return None
        if not kept.not_before <= time.time() < (kept.reader.expires_at or 0.0):
            return None
        self._known[token] = kept
        return kept.reader

    def _verified(self, token: str, keys: KeySet) -> _VerifiedReader:
        if len(token) > self._longest:
            raise Unauthorized(f"the token is longer than {self._longest} characters")
        if not _COMPACT.fullmatch(token):
            raise Unauthorized("the token is not a JWT")
        try:
            key = self._key_for(jwt.get_unverified_header(token), keys)
            claims = jwt.decode(
                token,
                key.verifying,
                algorithms=[key.algorithm, *key.family],
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway,
                options={"require": _REQUIRED},
            )
        except _UNREADABLE as problem:
            raise Unauthorized(f"the token was refused: {type(problem).__name__}") from None
        return self._read(token, claims)

    def _key_for(self, header: dict[str, Any], keys: KeySet) -> TokenKey:
        # RFC 7515: refuse a token with critical headers that we do not implement.
        if "crit" in header or "b64" in header:
            raise Unauthorized("the token has critical headers")
        key = keys.named(header.get("kid"))
        if key is None:
            raise Unauthorized("the token's kid is not one of the keys")
        if not key.takes(header.get("alg")):
            raise Unauthorized("the token's algorithm is not that of its key")
        return key

    def _read(self, token: str, claims: dict[str, Any]) -> _VerifiedReader:
        user, token_id = claims["sub"], claims.get("jti")
        if not isinstance(user, str) or not 0 < len(user) <= LONGEST_USER or not user.isprintable():
            raise Unauthorized(f"`sub` must be a string of 1 to {LONGEST_USER} printable characters")
        if token_id is None:
            # So that every token can be revoked.
            token_id = id_of(token)
        if not isinstance(token_id, str) or not 0 < len(token_id) <= LONGEST_ID:
            raise Unauthorized(f"`jti` must be a string of 1 to {LONGEST_ID} characters")
        permissions = Permissions(_granted(self._claimed(claims)))
        issued_at = _moment(claims["iat"]) if "iat" in claims else None
        reader = Reader(
            user=user,
            permissions=permissions,
            token_id=token_id,
            expires_at=_moment(claims["exp"]) + self._leeway,
            rights=rights_of(user, permissions),
            issued_at=issued_at,
        )
        not_before = _moment(claims["nbf"]) - self._leeway if "nbf" in claims else -math.inf
        return _VerifiedReader(reader, not_before, self._keys.generation)

    def _claimed(self, claims: dict[str, Any]) -> object:
        if isinstance(self._claim, str):
            return claims.get(self._claim)
        try:
            found = self._claim(claims)
            return found if isinstance(found, str) else list(found)
        except Exception as problem:  # noqa: BLE001 - a user's function may raise anything; the token is refused then
            # Without the error's text, which may quote a claim.
            log_event(logger, logging.WARNING, "claims_not_understood", error=type(problem).__name__)
            raise Unauthorized("the permissions function failed on the token's claims") from None

    def _remember(self, token: str, known: _VerifiedReader) -> None:
        # The least recently used one goes. Only verified tokens are kept, so guesses cannot push others out.
        if len(self._known) >= self._keep:
            del self._known[next(iter(self._known))]
        self._known[token] = known


def mint(
    keys: TokenKeys,
    user: str,
    permissions: Iterable[str],
    lifetime: timedelta,
    *,
    issuer: str | None = None,
    audience: str | None = None,
    claim: str = "permissions",
) -> str:
    """A new token, signed with the first key that can sign. For development, and for services that issue tokens."""
    issuer, audience = issuer or keys.current.issuer, audience or keys.current.audience
    if not issuer or not audience:
        raise DeclarationError("a token needs an issuer and an audience: give both, or add them to the JWK set")
    if not 0 < len(user) <= LONGEST_USER or not user.isprintable():
        raise DeclarationError(f"user {user!r:.100} is not valid: use 1 to {LONGEST_USER} printable characters")
    if not timedelta(seconds=1) <= lifetime <= LONGEST_LIFE:
        raise DeclarationError(f"lifetime {lifetime} is not valid: give 1 second to 10 years")
    key = keys.current.signing()
    now = int(time.time())
    claims = {
        "iss": issuer,
        "aud": audience,
        "sub": user,
        "jti": secrets.token_urlsafe(12),
        "iat": now,
        "exp": now + int(lifetime.total_seconds()),
        claim: list(checked(permissions)),
    }
    return jwt.encode(claims, key.signing, algorithm=key.algorithm, headers={"kid": key.kid})


def id_of(token: str) -> str:
    """The id for the revocation of a token without `jti`."""
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()[:40]


def named_by(text: str) -> tuple[str, float | None]:
    """The id and expiry of a token, not verified; any other text is an id itself."""
    if not _COMPACT.fullmatch(text):
        return text, None
    try:
        claims = jwt.decode(text, options={"verify_signature": False})
    except _UNREADABLE:
        return text, None
    expires = claims.get("exp")
    token_id = claims.get("jti")
    name = token_id if isinstance(token_id, str) else id_of(text)
    if not isinstance(expires, int) or isinstance(expires, bool) or not 0 < expires < LATEST:
        return name, None
    # One day more than any leeway.
    return name, expires + 86_400


def _granted(claim: object) -> list[str]:
    """Permissions from a list of strings, or from one string with spaces, like OAuth scopes."""
    found = claim.split() if isinstance(claim, str) else claim
    if found is None:
        return []
    if not isinstance(found, list) or len(found) > MOST or not all(isinstance(each, str) for each in found):
        raise Unauthorized(f"the token's permissions must be a list of at most {MOST} strings")
    return found


def _moment(claim: object) -> float:
    if isinstance(claim, int | float) and not isinstance(claim, bool) and -LATEST < claim < LATEST:
        return float(claim)
    raise Unauthorized("a time in the token is not a number")
