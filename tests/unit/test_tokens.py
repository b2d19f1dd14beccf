"""JWTs: what is accepted, and that everything else is refused with one and the same answer."""

import base64
import json
import logging
import os
import re
import stat
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from aftercommit.access import token_keys
from aftercommit.access.bearer import BearerAccess
from aftercommit.access.token_keys import ALGORITHMS, TokenKeys, parse_keys
from aftercommit.access.tokens import TokenVerifier, id_of, mint, named_by
from aftercommit.errors import DeclarationError, Unauthorized

SECRET = b"0123456789abcdef0123456789abcdef"
MESSAGE = "Missing or invalid authentication token"
READ = "investigation:*:read"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def shared(kid: str = "one", secret: bytes = SECRET, algorithm: str = "HS256") -> dict[str, Any]:
    return {"kty": "oct", "kid": kid, "alg": algorithm, "k": encoded(secret)}


def document(*keys: dict[str, Any]) -> str:
    return json.dumps({"issuer": "us", "audience": "feeds", "keys": list(keys)})


def keys_of(*keys: dict[str, Any]) -> TokenKeys:
    return TokenKeys.from_text(document(*keys))


def claims(**changed: Any) -> dict[str, Any]:
    now = int(time.time())
    found = {
        "iss": "us",
        "aud": "feeds",
        "sub": "ann",
        "iat": now,
        "exp": now + 60,
        "jti": "t-1",
        "permissions": [READ],
    }
    return {name: value for name, value in (found | changed).items() if value is not ...}


def signed(payload: dict[str, Any], key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> str:
    # Past the checks that jwt.encode makes for honest issuers.
    return jwt.PyJWS().encode(json.dumps(payload).encode(), key, algorithm, {"kid": "one", **header})


def by_hand(header: Any, payload: Any, signature: bytes = b"x") -> str:
    parts = (json.dumps(part).encode() if not isinstance(part, bytes) else part for part in (header, payload))
    return ".".join([*(encoded(part) for part in parts), encoded(signature)])


def by_key(header: dict[str, Any], payload: dict[str, Any]) -> str:
    """Signed with the shared secret under whatever header."""
    head = ".".join(encoded(json.dumps(part).encode()) for part in (header, payload))
    return f"{head}.{encoded(jwt.get_algorithm_by_name('HS256').sign(head.encode(), SECRET))}"


@pytest.fixture
def verifier() -> TokenVerifier:
    return TokenVerifier(keys_of(shared()), leeway_seconds=5)


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any, *, private: bool = False) -> str:
    if private:
        plain = serialization.NoEncryption()
        return str(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain).decode())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return str(key.public_key().public_bytes(serialization.Encoding.PEM, form).decode())


def refused(verifier: TokenVerifier, token: str) -> str:
    """Verified twice: a refusal must not be remembered as anything else."""
    reasons = set()
    for _ in range(2):
        with pytest.raises(Unauthorized) as refusal:
            verifier.verify(token)
        assert str(refusal.value) == MESSAGE
        assert refusal.value.__cause__ is None
        reasons.add(refusal.value.reason)
    (reason,) = reasons
    return reason


@pytest.mark.contract("L8")
def test_a_good_token_is_a_reader_with_its_permissions(verifier):
    payload = claims()
    reader = verifier.verify(signed(payload))

    assert (reader.user, reader.token_id, reader.issued_at) == ("ann", "t-1", payload["iat"])
    assert reader.expires_at == payload["exp"] + 5
    assert reader.may("investigation:INV-1:read")
    assert not reader.may("investigation:INV-1:write")


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"EdDSA"}))
def test_every_algorithm_works_with_its_kind_of_key(algorithm, rsa_key):
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    key: Any = SECRET * 2
    entry = shared(secret=key, algorithm=algorithm)
    if algorithm[0] != "H":
        key = ec.generate_private_key(curves[algorithm]) if algorithm in curves else rsa_key
        entry = {"kid": "one", "alg": algorithm, "pem": pem(key)}

    assert TokenVerifier(keys_of(entry)).verify(signed(claims(), key, algorithm)).user == "ann"


def test_edwards_curves_work_as_pem_and_as_jwk_and_can_mint():
    key = ed25519.Ed25519PrivateKey.generate()
    keys = keys_of({"kid": "one", "alg": "EdDSA", "pem": pem(key, private=True)})

    token = mint(keys, "ann", [READ], timedelta(hours=1))

    assert jwt.get_unverified_header(token) == {"alg": "EdDSA", "kid": "one", "typ": "JWT"}
    assert TokenVerifier(keys).verify(token).user == "ann"
    public = keys_of({"kid": "one", "alg": "EdDSA", "pem": pem(key)})
    assert TokenVerifier(public).verify(token).user == "ann"
    with pytest.raises(DeclarationError, match="none of the token keys can sign"):
        mint(public, "ann", [READ], timedelta(hours=1))


NOW = int(time.time())


@pytest.mark.contract("L8")
@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW - 3600},
        {"exp": ...},
        {"exp": "tomorrow"},
        {"exp": True},
        {"exp": 10**400},
        {"nbf": NOW + 3600},
        {"nbf": "tomorrow"},
        {"iat": NOW + 3600},
        {"iss": "them"},
        {"iss": ...},
        {"iss": ["us"]},
        {"aud": "other"},
        {"aud": ...},
        {"aud": []},
        {"aud": {"feeds": 1}},
        {"sub": ...},
        {"sub": ""},
        {"sub": "a" * 256},
        {"sub": "a\nb"},
        {"jti": ""},
        {"jti": "a" * 256},
        {"permissions": {"a": 1}},
        {"permissions": [1]},
        {"permissions": ["a:b"] * 1001},
    ],
    ids="+".join,
)
def test_a_token_with_a_wrong_claim_is_refused(changed, verifier):
    refused(verifier, signed(claims(**changed), SECRET))


@pytest.mark.contract("L8")
def test_attacks_on_the_header_are_refused(verifier):
    good = claims()
    attacks = {
        "no algorithm": by_hand({"alg": "none", "kid": "one"}, good),
        "no algorithm, other case": by_hand({"alg": "nOnE", "kid": "one"}, good),
        "no algorithm at all": by_hand({"kid": "one"}, good),
        "empty signature": signed(good).rpartition(".")[0] + ".",
        "algorithm is a list": by_hand({"alg": ["HS256"], "kid": "one"}, good),
        "another algorithm of the same family": signed(good, SECRET * 2, "HS512"),
        "wrong secret": signed(good, b"x" * 32),
        "unknown key": signed(good, kid="two"),
        "key as a path": signed(good, kid="../../../../dev/null"),
        "key as SQL": signed(good, kid="one' or '1'='1"),
        "key as NUL": signed(good, kid="one\x00"),
        "key is a number": by_hand({"alg": "HS256", "kid": 1}, good),
        "key is a list": by_hand({"alg": "HS256", "kid": ["one"]}, good),
        "own key in the header": signed(good, b"y" * 32, jwk=shared(secret=b"y" * 32)),
        "address of keys in the header": signed(good, b"y" * 32, jku="http://evil.example/keys"),
        "critical header": signed(good, crit=["exp"], exp=1),
        # Signed with the right key, and understood by the library: refused all the same.
        "critical b64": by_key({"alg": "HS256", "kid": "one", "crit": ["b64"], "b64": True}, good),
    }

    for name, token in attacks.items():
        assert refused(verifier, token), name


@pytest.mark.contract("L8")
def test_a_public_key_is_never_taken_for_a_shared_secret(rsa_key):
    public = pem(rsa_key)
    verifier = TokenVerifier(keys_of({"kid": "one", "alg": "RS256", "pem": public}, shared("two")))
    forged = []
    for material in (public, public.strip(), public.replace("\n", "")):
        # The library refuses to sign with such a secret; an attacker's does not.
        head = ".".join((encoded(b'{"alg":"HS256","kid":"one","typ":"JWT"}'), encoded(json.dumps(claims()).encode())))
        signature = jwt.get_algorithm_by_name("HS256").sign(head.encode(), material.encode())
        forged.append(f"{head}.{encoded(signature)}")

    for token in forged:
        refused(verifier, token)
    assert verifier.verify(signed(claims(), rsa_key, "RS256")).user == "ann"
    # And a key is used for its own algorithm alone, also within the same family and with the right secret.
    refused(verifier, signed(claims(), SECRET, "HS256", kid="one"))


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "e30.e30.e30",
        "ey J.e30.x",
        "null",
        "\x00",
        "é.é.é",
        "\ud800.a.b",
        by_hand(b"[" * 4000, b"{}"),
        by_hand({"alg": "HS256", "kid": "one"}, b"[" * 4000),
        by_hand(b"\xff\xfe", b"\xff"),
        "x" * 100_000,
    ],
    ids=lambda token: repr(token[:20]),
)
def test_garbage_is_refused(token, verifier):
    refused(verifier, token)


@given(st.text(max_size=300))
def test_any_text_is_refused_and_never_an_error(text):
    refused(TokenVerifier(keys_of(shared())), text)


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_any_three_parts_are_refused_and_never_an_error(header, payload, signature):
    refused(TokenVerifier(keys_of(shared())), ".".join(map(encoded, (header, payload, signature))))


def test_a_token_that_is_too_large_is_refused_before_anything_is_decoded():
    token = signed(claims(extra="x" * 9000))

    assert "longer than 8192" in refused(TokenVerifier(keys_of(shared())), token)
    assert TokenVerifier(keys_of(shared()), max_token_bytes=20_000).verify(token).user == "ann"


def test_a_token_that_was_altered_is_refused(verifier):
    token = signed(claims())
    header, payload, signature = token.split(".")
    other = encoded(json.dumps(claims(sub="root")).encode())

    assert verifier.verify(token).user == "ann"
    refused(verifier, f"{header}.{other}.{signature}")
    refused(verifier, f"{header}.{payload}.{signature[:-2]}AA")


def test_clocks_may_differ_by_the_leeway_and_no_more():
    now = int(time.time())
    verifier = TokenVerifier(keys_of(shared()), leeway_seconds=60)

    assert verifier.verify(signed(claims(exp=now - 30))).user == "ann"
    assert verifier.verify(signed(claims(nbf=now + 30))).user == "ann"
    refused(verifier, signed(claims(exp=now - 90)))
    refused(verifier, signed(claims(nbf=now + 90)))


def test_a_known_token_is_not_verified_again_but_still_expires(verifier, monkeypatch):
    token = signed(claims(exp=int(time.time()) + 60))
    verifier.verify(token)
    monkeypatch.setattr(jwt, "decode", None)

    assert verifier.verify(token).user == "ann"

    later = time.time() + 120
    monkeypatch.setattr(time, "time", lambda: later)
    assert refused_once(verifier, token) == "the token has expired"


def refused_once(verifier: TokenVerifier, token: str) -> str:
    with pytest.raises(Unauthorized) as refusal:
        verifier.verify(token)
    return refusal.value.reason


def test_of_many_tokens_the_one_that_was_not_seen_for_longest_is_forgotten(monkeypatch):
    verifier = TokenVerifier(keys_of(shared()), max_kept_tokens=2)
    one, two, three = (signed(claims(sub=name)) for name in ("one", "two", "three"))
    decoded: list[str] = []
    real = jwt.decode

    def decode(token, *rest, **options):
        decoded.append(token)
        return real(token, *rest, **options)

    monkeypatch.setattr(jwt, "decode", decode)

    for token in (one, two, one, three, one, two):
        verifier.verify(token)

    assert decoded == [one, two, three, two]


def test_strangers_do_not_push_known_tokens_out(monkeypatch):
    verifier = TokenVerifier(keys_of(shared()), max_kept_tokens=2)
    good = signed(claims())
    verifier.verify(good)
    for number in range(10):
        refused(verifier, signed(claims(sub=str(number)), b"x" * 32))
    monkeypatch.setattr(jwt, "decode", None)

    assert verifier.verify(good).user == "ann"


def test_permissions_may_be_words_in_a_text_under_a_name_of_ones_own():
    verifier = TokenVerifier(keys_of(shared()), permissions="scope")

    assert verifier.verify(signed(claims(scope=f"{READ} a:b"))).permissions.granted == ("a:b", READ)
    assert verifier.verify(signed(claims(permissions=["x:y"]))).permissions.granted == ()


def test_a_token_without_an_id_has_one_by_which_it_can_be_revoked(verifier):
    token = signed(claims(jti=...))

    assert verifier.verify(token).token_id == id_of(token) == named_by(token)[0]
    assert named_by(signed(claims(jti="t-9", exp=NOW))) == ("t-9", NOW + 86_400)
    assert named_by("t-9") == ("t-9", None)


def test_a_token_without_a_key_name_is_for_the_only_key_there_is():
    token = jwt.encode(claims(), SECRET, algorithm="HS256")

    assert TokenVerifier(keys_of(shared())).verify(token).user == "ann"
    refused(TokenVerifier(keys_of(shared(), shared("two", b"z" * 32))), token)


def test_rights_differ_by_user_and_by_permissions(verifier):
    changes: list[dict[str, object]] = [{}, {"jti": "t-2"}, {"sub": "bob"}, {"permissions": []}]
    one, same, user, may = (verifier.verify(signed(claims(**changed))) for changed in changes)

    assert one.rights == same.rights
    assert len({one.rights, user.rights, may.rights}) == 3


class TestKeys:
    def test_keys_are_rotated_by_changing_their_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(token_keys, "LOOK_SECONDS", 0.0)
        path = tmp_path / "keys.json"
        path.write_text(document(shared("old")))
        verifier = TokenVerifier(TokenKeys.from_file(path))
        old = jwt.encode(claims(), SECRET, headers={"kid": "old"})
        new = jwt.encode(claims(), b"n" * 32, headers={"kid": "new"})
        assert verifier.verify(old).user == "ann"
        refused(verifier, new)

        replace(path, document(shared("new", b"n" * 32), shared("old")))
        assert verifier.verify(new).user == "ann"
        assert verifier.verify(old).user == "ann"

        replace(path, document(shared("new", b"n" * 32)))
        # It was verified before, with a key that is gone.
        refused(verifier, old)
        assert verifier.verify(new).user == "ann"

    def test_a_file_that_cannot_be_used_leaves_the_keys_before_in_force(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(token_keys, "LOOK_SECONDS", 0.0)
        path = tmp_path / "keys.json"
        path.write_text(document(shared()))
        verifier = TokenVerifier(TokenKeys.from_file(path))
        token = signed(claims())

        for broken in ("{", document(), document(shared(secret=b"short"))):
            replace(path, broken)
            assert verifier.verify(token).user == "ann"
        path.unlink()
        assert verifier.verify(token).user == "ann"

        assert [record.message for record in caplog.records].count("token_keys_not_read") == 4
        assert encoded(SECRET) not in caplog.text

    def test_keys_come_from_the_environment(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        path.write_text(document(shared("file")))
        variables = {"AFTERCOMMIT_TOKEN_KEYS": document(shared("text"))}

        assert TokenKeys.from_environment({}) is None
        keys = TokenKeys.from_environment(variables)
        assert keys is not None
        assert list(keys.current.keys) == ["text"]
        variables["AFTERCOMMIT_TOKEN_KEYS"] = document(shared("next"))
        assert keys.reload()
        assert list(keys.look().keys) == ["next"]
        from_file = TokenKeys.from_environment(variables | {"AFTERCOMMIT_TOKEN_KEYS_FILE": str(path)})
        assert from_file is not None
        assert list(from_file.current.keys) == ["file"]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "are not JSON"),
            ("[]", "have no key"),
            ('{"keys": []}', "have no key"),
            ('{"keys": [1]}', "is not a JSON object"),
            (document({"kty": "oct", "alg": "HS256", "k": encoded(SECRET)}), "no valid kid"),
            (document({**shared(), "alg": "none"}), "alg 'none'"),
            (document({**shared(), "alg": None}), "alg None"),
            (document({**shared(), "alg": "RS256"}), "needs kty RSA"),
            (document({"kid": "one", "alg": "HS256", "pem": "-----BEGIN PUBLIC KEY-----"}), "needs a shared secret"),
            (document({"kid": "one", "alg": "ES256", "pem": "nothing"}), "not a valid key for ES256"),
            (document({"kid": "one", "alg": "RS256", "kty": "RSA"}), "is not a valid key"),
            (document({**shared(), "k": 5}), "is not a valid key"),
            (document(shared(secret=b"short")), "has 5 bytes"),
            (document(shared(algorithm="HS512")), "HS512 needs 64"),
            (document(shared(), shared()), "of another key"),
            (json.dumps({"issuer": 5, "keys": [shared()]}), "issuer 5"),
        ],
    )
    def test_keys_that_cannot_be_used_are_refused_with_the_reason(self, text: str, problem: str) -> None:
        with pytest.raises(DeclarationError, match=problem) as refusal:
            parse_keys(text, "token keys")
        assert encoded(SECRET) not in str(refusal.value)

    def test_a_weak_or_mismatched_key_pair_is_refused(self) -> None:
        weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)
        other = ec.generate_private_key(ec.SECP384R1())

        with pytest.raises(DeclarationError, match="1024 bits"):
            keys_of({"kid": "one", "alg": "RS256", "pem": pem(weak)})
        with pytest.raises(DeclarationError, match=r"curve P-256|not a valid key for ES256"):
            keys_of({"kid": "one", "alg": "ES256", "pem": pem(other)})

    def test_who_issues_tokens_and_for_whom_must_be_said(self) -> None:
        keys = TokenKeys.from_text(json.dumps({"keys": [shared()]}))

        with pytest.raises(DeclarationError, match="needs an issuer and an audience"):
            TokenVerifier(keys)
        with pytest.raises(DeclarationError, match="issuer and an audience"):
            mint(keys, "ann", [READ], timedelta(hours=1))
        assert TokenVerifier(keys, issuer="us", audience="feeds").verify(signed(claims())).user == "ann"

    def test_development_keys_are_made_once_and_are_for_their_owner_alone(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            one, two = TokenKeys.for_development(tmp_path / "home"), TokenKeys.for_development(tmp_path / "home")
        finally:
            os.umask(before)

        (file,) = (tmp_path / "home").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = mint(one, "ann", [READ], timedelta(hours=1))
        assert TokenVerifier(two).verify(token).may("investigation:INV-1:read")


def replace(path: Path, text: str) -> None:
    """As deployments do it: another file takes its place."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"user": ""}, "is not valid"),
        ({"user": "a\n"}, "is not valid"),
        ({"permissions": ["a:b*"]}, "is not valid"),
        ({"lifetime": timedelta()}, "is not valid"),
        ({"lifetime": timedelta(days=4000)}, "is not valid"),
    ],
)
def test_what_cannot_be_minted_is_refused(change, problem):
    wanted: dict[str, Any] = {"user": "ann", "permissions": [READ], "lifetime": timedelta(hours=1), **change}

    with pytest.raises(DeclarationError, match=problem):
        mint(keys_of(shared()), **wanted)


class TestBearer:
    @pytest.mark.contract("L8")
    @pytest.mark.parametrize(
        "header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Token x", "bearer", "Bearer act_x", "Bearerx"]
    )
    async def test_whoever_shows_no_bearer_token_is_unknown(self, verifier: TokenVerifier, header: str | None) -> None:
        with pytest.raises(Unauthorized, match=MESSAGE):
            await BearerAccess(verifier).reader(header, {})

    async def test_the_scheme_is_read_in_any_case_and_a_user_header_is_not_believed(
        self, verifier: TokenVerifier
    ) -> None:
        access = BearerAccess(verifier)

        for scheme in ("Bearer", "bearer", "BEARER"):
            reader = await access.reader(f"{scheme} {signed(claims())}", {"x-user-id": "root"})
            assert reader.user == "ann"
            assert access.still_valid(reader)

    async def test_a_reader_whose_token_expires_is_valid_no_more(
        self, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        access = BearerAccess(verifier)
        reader = await access.reader(f"Bearer {signed(claims())}", {})
        later = time.time() + 3600
        monkeypatch.setattr(time, "time", lambda: later)

        assert not access.still_valid(reader)

    async def test_a_reason_is_logged_and_a_token_is_not(
        self, verifier: TokenVerifier, caplog: pytest.LogCaptureFixture
    ) -> None:
        token = signed(claims(), b"x" * 32)
        with caplog.at_level("DEBUG", logger="aftercommit"), pytest.raises(Unauthorized):
            await BearerAccess(verifier).reader(f"Bearer {token}", {})

        (record,) = caplog.records
        assert record.__dict__["reason"] == "the token was refused: InvalidSignatureError"
        assert token not in str(record.__dict__)


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    """A public key as identity providers publish it: without an algorithm."""
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPublicKey) else jwt.algorithms.ECAlgorithm
    made = kind.to_jwk(key, as_dict=True)
    return {**{name: value for name, value in made.items() if name not in ("alg", "key_ops")}, "kid": kid, **more}


class TestSetsOfIdentityProviders:
    def test_keys_without_an_algorithm_are_used_by_their_kind(self, rsa_key: Any) -> None:
        curve = ec.generate_private_key(ec.SECP384R1())
        entries = [jwk(rsa_key.public_key(), "one", use="sig", x5t="one"), jwk(curve.public_key(), "two")]
        verifier = TokenVerifier(keys_of(*entries))
        for algorithm in ("RS256", "RS384", "RS512"):
            assert verifier.verify(signed(claims(), rsa_key, algorithm)).user == "ann"
        assert verifier.verify(signed(claims(), curve, "ES384", kid="two")).user == "ann"
        with pytest.raises(Unauthorized):
            verifier.verify(signed(claims(), rsa_key, "PS256"))

    def test_a_key_without_an_algorithm_is_never_a_shared_secret(self, rsa_key: Any) -> None:
        entry = jwk(rsa_key.public_key(), "one")
        verifier = TokenVerifier(keys_of(entry))
        for algorithm in ("HS256", "HS384", "HS512", "none"):
            for material in (pem(rsa_key), pem(rsa_key).strip(), json.dumps(entry), entry["n"]):
                head = json.dumps({"alg": algorithm, "kid": "one"}).encode()
                told = f"{encoded(head)}.{encoded(json.dumps(claims()).encode())}"
                used = "HS256" if algorithm == "none" else algorithm
                signature = jwt.get_algorithm_by_name(used).sign(told.encode(), material.encode())
                with pytest.raises(Unauthorized):
                    verifier.verify(f"{told}.{encoded(signature)}")
        with pytest.raises(DeclarationError, match="alg None"):
            keys_of({"kty": "oct", "kid": "one", "k": encoded(SECRET)})

    def test_keys_for_encryption_are_passed_over_and_said_once(
        self, rsa_key: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        public = rsa_key.public_key()
        entries = [
            jwk(public, "enc", use="enc", alg="RSA-OAEP"),
            jwk(public, "enc-2", alg="RSA-OAEP-256"),
            jwk(public, "enc-3", use="enc"),
            jwk(public, "one", use="sig", alg="RS256"),
        ]
        with caplog.at_level(logging.INFO, logger="aftercommit.tokens"):
            verifier = TokenVerifier(keys_of(*entries))
        assert verifier.verify(signed(claims(), rsa_key, "RS256")).user == "ann"
        for kid in ("enc", "enc-2", "enc-3"):
            with pytest.raises(Unauthorized):
                verifier.verify(signed(claims(), rsa_key, "RS256", kid=kid))
        [said] = [record for record in caplog.records if record.message.startswith("token_keys_skipped")]
        assert (said.used, len(said.skipped)) == (1, 3)  # type: ignore[attr-defined]
        assert entries[0]["n"] not in caplog.text
        with pytest.raises(DeclarationError, match="use 'enc'"):
            keys_of(entries[0])

    @pytest.mark.parametrize(
        "entry",
        [
            {"kty": "RSA", "kid": "x", "alg": "RS256"},
            {"kty": "EC", "crv": "P-256", "kid": "x", "alg": "ES384"},
            {"kty": "oct", "kid": "x", "alg": "HS256", "k": encoded(b"short")},
            {"kty": "oct", "kid": "one", "alg": "HS256", "k": encoded(SECRET)},
        ],
    )
    def test_a_key_for_signatures_that_is_wrong_is_refused_beside_good_ones(self, entry: dict[str, Any]) -> None:
        with pytest.raises(DeclarationError):
            keys_of(shared(), entry)

    def test_a_function_makes_permissions_of_all_claims(self) -> None:
        namespace: dict[str, Any] = {"TokenVerifier": lambda *arguments, **options: None, "keys": None}
        page = (Path(__file__).parents[2] / "docs/guides/security.md").read_text()
        example = next(part for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "realm_access" in part)
        exec(compile(example, "security.md", "exec"), namespace)  # noqa: S102 - our own page, and the point of the test
        verifier = TokenVerifier(keys_of(shared()), permissions=namespace["permissions_of"])
        reader = verifier.verify(signed(claims(realm_access={"roles": ["analyst", "other"]})))
        assert reader.may("investigation:INV-1:read")
        assert not reader.may("investigation:INV-1:write")
        assert not verifier.verify(signed(claims())).may("investigation:INV-1:read")

    @pytest.mark.parametrize("made", [None, 7, ["x", 7], ["x"] * 2000])
    def test_a_function_that_fails_lets_nobody_in(self, made: Any, caplog: pytest.LogCaptureFixture) -> None:
        verifier = TokenVerifier(keys_of(shared()), permissions=lambda claims: made)
        with pytest.raises(Unauthorized):
            verifier.verify(signed(claims()))


def test_a_verifier_without_keys_says_how_to_give_them():
    with pytest.raises(DeclarationError, match=r"set AFTERCOMMIT_TOKEN_KEYS_FILE .* or AFTERCOMMIT_TOKEN_KEYS"):
        TokenVerifier(TokenKeys.from_environment({}))
