"""The keys for JWTs, from a JWK set (RFC 7517), as identity providers publish it. A key may also be PEM.

Each key has a name (`kid`) and a fixed algorithm, which a token cannot choose. Keys that are not for signatures are
skipped.
"""

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from aftercommit.errors import DeclarationError, MissingExtra
from aftercommit.telemetry import log_event

try:
    import jwt
    from jwt.utils import base64url_encode
except ModuleNotFoundError as problem:
    raise MissingExtra("serve", problem.name or "jwt") from problem

logger = logging.getLogger("aftercommit.tokens")

TOKEN_KEYS_VARIABLE = "AFTERCOMMIT_TOKEN_KEYS"
"""The environment variable with a JWK set."""
TOKEN_KEYS_FILE_VARIABLE = "AFTERCOMMIT_TOKEN_KEYS_FILE"
"""The environment variable with the path of a JWK set."""
DEVELOPMENT_FILE = "token-keys.json"

# The accepted algorithms, and the key type that each needs. "none" is not among them.
ALGORITHMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("HS256", "HS384", "HS512"), "oct"),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
# The algorithm of a key without `alg`, by its curve. A shared secret must name its algorithm.
_BY_CURVE: Final = {**{curve: algorithm for algorithm, curve in _CURVES.items()}, "Ed25519": "EdDSA", "Ed448": "EdDSA"}
_RSA_FAMILY: Final = ("RS256", "RS384", "RS512")
_LEAST_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_LEAST_BITS = 2048
_PRIVATE: Final = ("d", "p", "q", "dp", "dq", "qi", "oth")
# How often the file is checked for changes, which costs a system call.
LOOK_SECONDS = 1.0
LONGEST_NAME = 200


class _NotForSignatures(Exception):
    """A key of a set that cannot verify tokens: it is for encryption, or for another algorithm."""


class TokenKey(msgspec.Struct, frozen=True):
    """One key. It can sign if it has the private part or the secret.

    It accepts its own `algorithm` only; an RSA key without `alg` accepts those of `family`, too.
    """

    kid: str
    algorithm: str
    verifying: Any
    signing: Any = None
    family: tuple[str, ...] = ()

    def takes(self, algorithm: object) -> bool:
        """Whether a token with this `alg` may be verified with the key."""
        return algorithm == self.algorithm or algorithm in self.family


class KeySet(msgspec.Struct, frozen=True):
    """The keys of a JWK set, with the issuer and audience that the same document may name."""

    keys: Mapping[str, TokenKey]
    issuer: str | None = None
    audience: str | None = None

    def named(self, kid: str | None) -> TokenKey | None:
        """The key of this name. Without a name, the only key, or None if there are several."""
        if kid is None:
            return next(iter(self.keys.values())) if len(self.keys) == 1 else None
        return self.keys.get(kid)

    def signing(self) -> TokenKey:
        """The first key that can sign."""
        for key in self.keys.values():
            if key.signing is not None:
                return key
        raise DeclarationError(
            "none of the token keys can sign: all are public keys. Mint tokens where the private key is, or add it"
        )


class TokenKeys:
    """The current keys, and their source. `generation` counts changes. Make it with one of the classmethods."""

    def __init__(self, read: Callable[[], str], what: str, path: Path | None = None) -> None:
        """Reads the keys once, so that invalid ones are refused at the start."""
        self._read, self._what, self._path = read, what, path
        self._seen = self._stamp()
        self._looked_at = time.monotonic()
        self._refused: str | None = None
        self.generation = 0
        self.current = parse_keys(read(), what)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Keys from the text of a JWK set."""
        return cls(lambda: text, "the given keys")

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Keys from a file. They are read again when it changes; an invalid file leaves the keys as they are."""
        file = Path(path)
        return cls(lambda: _text_of(file), f"token keys {str(file)!r}", file)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Keys from AFTERCOMMIT_TOKEN_KEYS_FILE (a path) or AFTERCOMMIT_TOKEN_KEYS (the document), if one is set."""
        variables = os.environ if environment is None else environment
        if variables.get(TOKEN_KEYS_FILE_VARIABLE):
            return cls.from_file(variables[TOKEN_KEYS_FILE_VARIABLE])
        if variables.get(TOKEN_KEYS_VARIABLE):
            return cls(lambda: variables.get(TOKEN_KEYS_VARIABLE, ""), TOKEN_KEYS_VARIABLE)
        return None

    @classmethod
    def for_development(cls, folder: Path) -> Self:
        """A secret in this folder, created on first use. Only the file's owner can read it."""
        path = folder / DEVELOPMENT_FILE
        if not path.exists():
            _make_development_keys(path)
        return cls.from_file(path)

    def look(self) -> KeySet:
        """The current keys; checks now and then whether their file has changed."""
        if self._path is not None:
            now = time.monotonic()
            if now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                if self._stamp() != self._seen:
                    self.reload()
        return self.current

    def reload(self) -> bool:
        """Read the keys again. Invalid keys are logged once, and the previous keys stay in use."""
        self._seen = self._stamp()
        try:
            found = parse_keys(self._read(), self._what)
        except DeclarationError as problem:
            if str(problem) != self._refused:
                log_event(
                    logger, logging.ERROR, "token_keys_not_read", error=str(problem), remedy="the old keys stay in use"
                )
            self._refused = str(problem)
            return False
        self._refused = None
        self.current = found
        self.generation += 1
        log_event(logger, logging.INFO, "token_keys_read", source=self._what, keys=list(found.keys))
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        # The inode, too: a file that replaces another by renaming may have the same size and time.
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)


def parse_keys(text: str, what: str) -> KeySet:
    """Parse a JWK set; DeclarationError names the key that is wrong, without showing it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise DeclarationError(f'{what} are not JSON: write a JWK set, {{"keys": [{{…}}]}}') from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DeclarationError(f'{what} have no key: write a JWK set, {{"keys": [{{"kid": …, "alg": …, …}}]}}')
    keys: dict[str, TokenKey] = {}
    skipped: list[_NotForSignatures] = []
    for number, entry in enumerate(entries, start=1):
        try:
            key = _parse_key(entry, f"key {number} of {what}")
        except _NotForSignatures as reason:
            skipped.append(reason)
            continue
        if key.kid in keys:
            raise DeclarationError(
                f"key {number} of {what} has the kid {key.kid!r} of another key: give each key its own kid"
            )
        keys[key.kid] = key
    if not keys:
        raise DeclarationError(str(skipped[0]))
    if skipped:
        log_event(
            logger, logging.INFO, "token_keys_skipped", used=len(keys), skipped=[str(each) for each in skipped][:20]
        )
    return KeySet(keys, _named(document, "issuer", what), _named(document, "audience", what))


def _named(document: dict[str, Any], name: str, what: str) -> str | None:
    value = document.get(name)
    if value is not None and not (isinstance(value, str) and value):
        raise DeclarationError(f"{what}: {name} {value!r:.60} must be a non-empty string")
    return value


def _parse_key(entry: object, what: str) -> TokenKey:
    if not isinstance(entry, dict):
        raise DeclarationError(f"{what} is not a JSON object")
    kid, algorithm = entry.get("kid"), entry.get("alg")
    if not isinstance(kid, str) or not 0 < len(kid) <= LONGEST_NAME:
        raise DeclarationError(f"{what} has no valid kid: give it a name of 1 to {LONGEST_NAME} characters")
    if entry.get("use", "sig") != "sig":
        raise _NotForSignatures(f"{what} ({kid!r:.60}) has use {entry['use']!r:.20}: only 'sig' keys verify tokens")
    family: tuple[str, ...] = ()
    if algorithm is None and "pem" not in entry:
        algorithm, family = _inferred(entry)
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _NotForSignatures(f"{what} has alg {algorithm!r:.40}: use one of {', '.join(ALGORITHMS)}")
    document = _as_jwk(entry, algorithm, what) if "pem" in entry else entry
    if document.get("kty") != ALGORITHMS[algorithm]:
        raise DeclarationError(
            f"{what} has alg {algorithm}, which needs kty {ALGORITHMS[algorithm]}, but its kty is "
            f"{document.get('kty')!r:.20}"
        )
    if document.get("crv") != _CURVES.get(algorithm, document.get("crv")):
        raise DeclarationError(f"{what} has alg {algorithm}, which needs the curve {_CURVES[algorithm]}")
    return msgspec.structs.replace(_loaded(kid, str(algorithm), document, what), family=family)


def _inferred(entry: dict[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """The algorithms of a key without `alg`, by its type and curve."""
    if entry.get("kty") == "RSA":
        return _RSA_FAMILY[0], _RSA_FAMILY[1:]
    curve = entry.get("crv")
    algorithm = _BY_CURVE.get(curve) if isinstance(curve, str) else None
    return algorithm if algorithm is not None and ALGORITHMS[algorithm] == entry.get("kty") else None, ()


def _as_jwk(entry: dict[str, Any], algorithm: str, what: str) -> dict[str, Any]:
    """A PEM key as a JWK."""
    if ALGORITHMS[algorithm] == "oct":
        raise DeclarationError(f"{what} has alg {algorithm}, which needs a shared secret, and a PEM key: change one")
    try:
        handler = jwt.get_algorithm_by_name(algorithm)
        found: dict[str, Any] = handler.to_jwk(handler.prepare_key(entry["pem"]), as_dict=True)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, NotImplementedError):
        raise DeclarationError(f"{what} has a PEM that is not a valid key for {algorithm}") from None
    return found


def _loaded(kid: str, algorithm: str, document: dict[str, Any], what: str) -> TokenKey:
    handler = jwt.get_algorithm_by_name(algorithm)
    try:
        key = handler.prepare_key(handler.from_jwk(document))
        public = {name: value for name, value in document.items() if name not in _PRIVATE}
        verifying = handler.from_jwk(public) if "d" in document else key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        raise DeclarationError(f"{what} ({kid!r:.60}) is not a valid key for {algorithm}") from None
    if isinstance(key, bytes) and len(key) < _LEAST_BYTES[algorithm]:
        raise DeclarationError(
            f"{what} ({kid!r:.60}) has {len(key)} bytes: {algorithm} needs {_LEAST_BYTES[algorithm]} random bytes"
        )
    if ALGORITHMS[algorithm] == "RSA" and key.key_size < _LEAST_BITS:
        raise DeclarationError(f"{what} ({kid!r:.60}) has {key.key_size} bits: RSA needs {_LEAST_BITS} or more")
    return TokenKey(kid, algorithm, verifying, key if isinstance(key, bytes) or "d" in document else None)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DeclarationError(
            f"there is no file {str(path)!r} with token keys: put a JWK set there. To try things out, run "
            "`aftercommit token mint --user NAME --may PERMISSION`, which makes a key in .aftercommit"
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise DeclarationError(f"cannot read token keys {str(path)!r}: {problem}") from None


def _make_development_keys(path: Path) -> None:
    """Create the file atomically; if several processes try, the first one wins."""
    secret = base64url_encode(secrets.token_bytes(32)).decode()
    key = {"kid": f"development-{secrets.token_hex(4)}", "kty": "oct", "alg": "HS256", "k": secret}
    document = {"issuer": "aftercommit-development", "audience": "aftercommit", "keys": [key]}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
