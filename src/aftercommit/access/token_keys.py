"""The keys of JWTs: several, each with a name (`kid`) and an algorithm that is fixed here and not by any token.

They come as a JWK set (RFC 7517), the form in which identity providers publish theirs: keys in it that are not for
signatures are passed over. A key may also be given as PEM.
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

KEYS = "AFTERCOMMIT_TOKEN_KEYS"
"""The environment variable with the JWK set itself."""
KEYS_FILE = "AFTERCOMMIT_TOKEN_KEYS_FILE"
"""The environment variable with the path of a JWK set."""
DEVELOPMENT_FILE = "token-keys.json"

# By the kind of key that each algorithm needs. Nothing else is ever accepted, "none" least of all.
ALGORITHMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("HS256", "HS384", "HS512"), "oct"),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
}
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
# What a key without `alg` is for. A public key says it by its kind, and a shared secret does not.
_BY_CURVE: Final = {**{curve: algorithm for algorithm, curve in _CURVES.items()}, "Ed25519": "EdDSA", "Ed448": "EdDSA"}
_RSA_FAMILY: Final = ("RS256", "RS384", "RS512")
_LEAST_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
_LEAST_BITS = 2048
# A changed file is noticed within this time; looking costs a system call.
LOOK_SECONDS = 1.0
LONGEST_NAME = 200


class _NotForSignatures(Exception):
    """A key that no token is verified with, in a set that may have others: for encryption, or of another algorithm."""


class TokenKey(msgspec.Struct, frozen=True):
    """One key: to verify with, and to sign with where the private half or the secret is known.

    It is for its `algorithm` alone; an RSA key of which nobody says the algorithm is for the others of `family`, too.
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
    """The keys of one moment, with the issuer and the audience that the same document may name."""

    keys: Mapping[str, TokenKey]
    issuer: str | None = None
    audience: str | None = None

    def named(self, kid: str | None) -> TokenKey | None:
        """The key of this name. A token without one is meant for the only key there is, or for none."""
        if kid is None:
            return next(iter(self.keys.values())) if len(self.keys) == 1 else None
        return self.keys.get(kid)

    def signing(self) -> TokenKey:
        """The first key that can sign."""
        for key in self.keys.values():
            if key.signing is not None:
                return key
        raise DeclarationError(
            "none of the token keys can sign: they are public keys. Mint tokens where the private key is, or add one"
        )


class TokenKeys:
    """Where the keys come from, and the keys as they are now. `generation` counts how often they changed."""

    def __init__(self, read: Callable[[], str], what: str, path: Path | None = None) -> None:
        """Read once: keys that cannot be used are refused at the start. Better made by one of the classmethods."""
        self._read, self._what, self._path = read, what, path
        self._seen = self._stamp()
        self._looked_at = time.monotonic()
        self._refused: str | None = None
        self.generation = 0
        self.current = parse_keys(read(), what)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Keys from a JWK set that is at hand."""
        return cls(lambda: text, "the given keys")

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Keys from a file. When it changes they are read again; a file that cannot be used leaves those before."""
        file = Path(path)
        return cls(lambda: _text_of(file), f"token keys {str(file)!r}", file)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self | None:
        """Keys from AFTERCOMMIT_TOKEN_KEYS_FILE (a path) or AFTERCOMMIT_TOKEN_KEYS (the document), if one is set."""
        variables = os.environ if environment is None else environment
        if variables.get(KEYS_FILE):
            return cls.from_file(variables[KEYS_FILE])
        if variables.get(KEYS):
            return cls(lambda: variables.get(KEYS, ""), KEYS)
        return None

    @classmethod
    def for_development(cls, folder: Path) -> Self:
        """A secret of this folder alone, made when it is first asked for; only its owner can read it."""
        path = folder / DEVELOPMENT_FILE
        if not path.exists():
            _make_development_keys(path)
        return cls.from_file(path)

    def look(self) -> KeySet:
        """The keys as they are now; once in a while it is looked whether their file has changed."""
        if self._path is not None:
            now = time.monotonic()
            if now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                if self._stamp() != self._seen:
                    self.reload()
        return self.current

    def reload(self) -> bool:
        """Read again. What cannot be used is said once and changes nothing: the keys before stay in force."""
        self._seen = self._stamp()
        try:
            found = parse_keys(self._read(), self._what)
        except DeclarationError as problem:
            if str(problem) != self._refused:
                log_event(
                    logger, logging.ERROR, "token_keys_not_read", error=str(problem), remedy="the keys before are used"
                )
            self._refused = str(problem)
            return False
        self._refused = None
        self.current = found
        self.generation += 1
        log_event(logger, logging.INFO, "token_keys_read", source=self._what, keys=list(found.keys))
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        # The inode too: a file that is replaced by renaming may keep size and time.
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_size, found.st_ino)


def parse_keys(text: str, what: str) -> KeySet:
    """The keys of a JWK set; DeclarationError says what is wrong with which, never showing one."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise DeclarationError(f'{what} cannot be read: write a JWK set, {{"keys": [{{…}}]}}') from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise DeclarationError(f'{what} hold no key: write a JWK set, {{"keys": [{{"kid": …, "alg": …, …}}]}}')
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
                f"key {number} of {what} is called {key.kid!r} like another one: give it its own kid"
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
        raise DeclarationError(f"{what} have {name} {value!r:.60}: write a text")
    return value


def _parse_key(entry: object, what: str) -> TokenKey:
    if not isinstance(entry, dict):
        raise DeclarationError(f"{what} is no JSON object")
    kid, algorithm = entry.get("kid"), entry.get("alg")
    if not isinstance(kid, str) or not 0 < len(kid) <= LONGEST_NAME:
        raise DeclarationError(f"{what} has no usable kid: give it a name of up to {LONGEST_NAME} characters")
    if entry.get("use", "sig") != "sig":
        raise _NotForSignatures(f"{what} ({kid!r:.60}) has use {entry['use']!r:.20}: only 'sig' keys verify tokens")
    family: tuple[str, ...] = ()
    if algorithm is None and "pem" not in entry:
        algorithm, family = _inferred(entry)
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise _NotForSignatures(f"{what} has alg {algorithm!r:.40}: fix one of {', '.join(ALGORITHMS)}")
    document = _as_jwk(entry, algorithm, what) if "pem" in entry else entry
    if document.get("kty") != ALGORITHMS[algorithm]:
        raise DeclarationError(
            f"{what} has alg {algorithm}, which needs a key of kind {ALGORITHMS[algorithm]}, and is of kind "
            f"{document.get('kty')!r:.20}"
        )
    if document.get("crv") != _CURVES.get(algorithm, document.get("crv")):
        raise DeclarationError(f"{what} has alg {algorithm}, which needs the curve {_CURVES[algorithm]}")
    return msgspec.structs.replace(_loaded(kid, str(algorithm), document, what), family=family)


def _inferred(entry: dict[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    """What a key without `alg` is for, by its kind alone: whatever a token says, no other kind."""
    if entry.get("kty") == "RSA":
        return _RSA_FAMILY[0], _RSA_FAMILY[1:]
    curve = entry.get("crv")
    algorithm = _BY_CURVE.get(curve) if isinstance(curve, str) else None
    return algorithm if algorithm is not None and ALGORITHMS[algorithm] == entry.get("kty") else None, ()


def _as_jwk(entry: dict[str, Any], algorithm: str, what: str) -> dict[str, Any]:
    """PEM in the form of the others."""
    if ALGORITHMS[algorithm] == "oct":
        raise DeclarationError(f"{what} has alg {algorithm} and a PEM key: a PEM key is never a shared secret")
    try:
        handler = jwt.get_algorithm_by_name(algorithm)
        found: dict[str, Any] = handler.to_jwk(handler.prepare_key(entry["pem"]), as_dict=True)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, NotImplementedError):
        raise DeclarationError(f"{what} has a PEM that is no key for {algorithm}") from None
    return found


def _loaded(kid: str, algorithm: str, document: dict[str, Any], what: str) -> TokenKey:
    handler = jwt.get_algorithm_by_name(algorithm)
    try:
        key = handler.prepare_key(handler.from_jwk(document))
        verifying = handler.from_jwk(_public(document)) if "d" in document else key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError):
        raise DeclarationError(f"{what} ({kid!r:.60}) cannot be used as a key for {algorithm}") from None
    if isinstance(key, bytes) and len(key) < _LEAST_BYTES[algorithm]:
        raise DeclarationError(
            f"{what} ({kid!r:.60}) has {len(key)} bytes: {algorithm} needs {_LEAST_BYTES[algorithm]} random ones"
        )
    if ALGORITHMS[algorithm] == "RSA" and key.key_size < _LEAST_BITS:
        raise DeclarationError(f"{what} ({kid!r:.60}) has {key.key_size} bits: RSA needs {_LEAST_BITS} or more")
    return TokenKey(kid, algorithm, verifying, key if isinstance(key, bytes) or "d" in document else None)


def _public(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("d", "p", "q", "dp", "dq", "qi", "oth")}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DeclarationError(
            f"token keys {str(path)!r} are not there: put a JWK set there, or, to try things out, let "
            "`aftercommit token mint --user NAME --may PERMISSION` make a key in .aftercommit"
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise DeclarationError(f"token keys {str(path)!r} cannot be read: {problem}") from None


def _make_development_keys(path: Path) -> None:
    """Whole or not at all, and by the first of several that come at once."""
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
