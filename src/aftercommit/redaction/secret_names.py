"""What the name of a field says about its value: `db_password` holds a secret, `max_tokens` does not. Pure."""

import re
from typing import Final

from aftercommit.redaction.patterns import by_first_letter

SECRET: Final = "secret"
# Only where the value also looks like a long key (MAYBE), or like any generated text (LIKELY).
MAYBE: Final = "key"
LIKELY: Final = "token"
# Only where the value holds several: `cookies: 3` is harmless.
JAR: Final = "cookies"

# Anywhere in a name. Compared without case and punctuation: DB_PASSWORD is dbpassword.
_SECRETS = (
    "password passwd passphrase passcode passwort kennwort motdepasse contrasena senha wachtwoord losenord passord "
    "salasana pwd secret token apikey accesskey privatekey privkey secretkey signingkey encryptionkey authkey "
    "sharedkey masterkey accountkey clientkey serverkey servicekey licensekey deploykey stripekey openaikey "
    "anthropickey sendgridkey twiliokey mailgunkey sshkey hmackey jwtkey recoverykey subscriptionkey credential "
    "authorization sessionid sessid sessionkey setcookie cookie connectionstring bearer csrf xsrf jwt recoverycode "
    "onetimecode otpcode mfacode verificationcode securitycode requirepass masterauth "
    "adgangskode kodeord jelszo matkhau slaptazodis lozinka "
    "пароль 密码 密碼 口令 パスワード 暗証番号 비밀번호 סיסמה סיסמא पासवर्ड รหัสผ่าน κωδικόςπρόσβασης κωδικοςπροσβασης"
).split()
# As the whole name or its last word: `pass`, `db.pass`, `userPass`.
_SECRET_WORDS = frozenset(
    "pass pw auth pin pincode cvv cvc cvv2 cvc2 csc otp totp sas hasło haslo heslo sifre parola".split()
)
_LAST_WORDS = (*_SECRET_WORDS, "key")
# Also without anything between: `dbpass`.
_BEFORE_PASS = "db sql pg postgres user root admin smtp mail ftp ldap redis login key store proxy my wifi".split()
_BEFORE_AUTH = "redis db http proxy basic smtp".split()
_GLUED = (*(f"{before}pass" for before in _BEFORE_PASS), *(f"{before}auth" for before in _BEFORE_AUTH))
# Before such a word these give it another meaning: a render pass, a GPIO pin, whether a login is required.
_ORDINARY = frozenset(
    "first second third last next previous single one two multi render shader shadow depth color post pre final each "
    "per test low high band by gpio led data input output analog digital io require requires required need needs no "
    "has is use uses supports skip without".split()
)
# `STRIPE_KEY` is a secret, but a key that identifies rows, messages and the like is not.
_ORDINARY_KEYS = frozenset(
    "primary foreign sort cache partition routing public idempotency row lookup group grouping dedup deduplication "
    "shard unique index message record object bucket order config error translation map dict json default event stream "
    "queue topic entity natural surrogate composite business range search feature flag metric label tag tenant item "
    "product document file path redis sample hot any".split()
)
_PERSONAL = {
    "phone": "phone phonenumber telephone tel mobile mobilenumber cellphone msisdn fax faxnumber whatsapp".split(),
    "national-id": (
        "ssn socialsecurity socialsecuritynumber nationalid nationalinsurance nino taxid aadhaar bsn "
        "burgerservicenummer passport passportnumber driverslicense licensenumber cpf pesel personnummer"
    ).split(),
    "card": "cardnumber creditcard creditcardnumber ccnumber cardno pan".split(),
    "account": "iban accountnumber routingnumber".split(),
}
_KINDS = {name: kind for kind, names in _PERSONAL.items() for name in names} | dict.fromkeys(_SECRET_WORDS, SECRET)
# A name that ends like this is about a secret, and its value is harmless.
_HARMLESS = (
    "tokens secretary count type length len size limit budget usage policy strength expiry expires expired "
    "used remaining left second minute expiresin expiresat expiration ttl age enabled required valid version name "
    "status state url uri path file field label endpoint rotation attempts tokenid tokenids keyid keyids secretid "
    "secretids credentialid credentialids"
).split()
_TOLD_BY = 3


def _endings() -> dict[str, list[tuple[str, str | None]]]:
    """What the end of a name says, by its last letters. Long personal names count as endings: `homephone`."""
    found: dict[str, list[tuple[str, str | None]]] = {}
    personal = [(name, kind) for kind, names in _PERSONAL.items() for name in names if len(name) > 4]
    for ending, kind in (*personal, (JAR, JAR), *((ending, None) for ending in _HARMLESS)):
        found.setdefault(ending[-_TOLD_BY:], []).append((ending, kind))
    return found


_ENDINGS = _endings()
_LIKELY = ("sig", "signature", "hmac")
_WEAK = tuple("key hash nonce seed salt digest code".split())
# In the query of a URL these are secrets whatever their value looks like.
_IN_QUERIES = ("sig", "signature", "hmac", "authcode")
# Letters of other scripts stay, or what is left of a word in another alphabet could be a name.
_PUNCTUATION = re.compile(r"[\W_]+")
_WORD = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]++|\d++")
# Every name above contains one of these, which are quick to search for.
HINTS: Final = (
    "pass pwd pw secret token key auth cred sess cookie conn bearer csrf xsrf jwt code pin cvv cvc csc otp sas phone "
    "tel mobile cell msisdn fax whatsapp wachtw ssn senha social salas national nino tax aadhaar bsn burger license "
    "losen cpf pesel person card cc pan iban account routing kennwort motde contrasena hash nonce sig seed salt hmac "
    "digest hasło haslo heslo sifre parola adgangskode kodeord jelszo mat_khau mat-khau matkhau slaptaz lozinka "
    "пароль 密码 密碼 口令 パスワード 暗証番号 비밀번호 סיסמה סיסמא पासवर्ड รหัสผ่าน κωδικ"
).split()
# Names of several words, for `key_value`.
PHRASES: Final = ("mot de passe", "mat khau", "κωδικός πρόσβασης", "κωδικος προσβασης")
# Of a longer name only the end is looked at.
LONGEST_NAME: Final = 200
_HINT = re.compile(by_first_letter(HINTS))
_IS_SECRET = re.compile(by_first_letter(_SECRETS))

_OPAQUE = re.compile(r"[A-Za-z0-9+/_.~-]{16,}+={0,2}")
_SHORT_OPAQUE = re.compile(r"[A-Za-z0-9+/_.~%-]{6,}+={0,2}")
_WORDS = re.compile(r"[a-z]+(?:[-_./][a-z]+)*|[A-Z]+(?:[-_./][A-Z]+)*")
_SEVERAL = re.compile(r"[{\[]|[^\s=;,]{1,64}+=")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_DIGIT = re.compile(r"\d")
_SOME_DIGITS = re.compile(r"(?:\D*+\d){5}")
_LEAST_DIFFERENT = 10


def kind_of(name: str) -> str | None:
    """What a field of this name holds: a secret, a phone number, …, maybe a key, or nothing to hide."""
    plain = _plain(name)
    if not _HINT.search(plain):
        return None
    if plain in _KINDS:
        return _KINDS[plain]
    for ending, kind in _ENDINGS.get(plain[-_TOLD_BY:], ()):
        if plain.endswith(ending):
            return kind
    # `created_at` and the like are times.
    if "tokeniz" in plain or (plain.endswith("at") and plain[-3:-2].isalpha()):
        return None
    if _IS_SECRET.search(plain) or (plain.endswith(_LAST_WORDS) and _ends_secretly(name[-LONGEST_NAME:], plain)):
        return SECRET
    if plain.endswith(_LIKELY):
        return LIKELY
    return MAYBE if plain.endswith(_WEAK) else None


def says_nothing(name: str) -> bool:
    """Whether the name is harmless by a quick test, as most are."""
    return _HINT.search(_plain(name)) is None


def kind_in_query(name: str) -> str | None:
    """The same for a parameter of a URL, where a short code or signature is a secret, too."""
    plain = _plain(name)
    return SECRET if plain == "code" or plain.endswith(_IN_QUERIES) else kind_of(name)


def _plain(name: str) -> str:
    plain = name[-LONGEST_NAME:].lower()
    return plain if plain.isascii() and plain.isalnum() else _PUNCTUATION.sub("", plain)


def _ends_secretly(name: str, plain: str) -> bool:
    """Whether the last of several words makes the name a secret."""
    if plain.endswith(_GLUED):
        return True
    *before, last = _WORD.findall(name) or [""]
    if not before:
        return False
    word, one_before = last.lower(), before[-1].lower()
    if word in _SECRET_WORDS:
        return one_before not in _ORDINARY
    return last == "KEY" and name.isupper() and one_before not in _ORDINARY_KEYS


def looks_personal(value: str) -> bool:
    """Whether a value has enough digits for a phone or an id: `microphone: muted` does not."""
    return _SOME_DIGITS.match(value, 0, 100) is not None


def looks_secret(value: str) -> bool:
    """Whether a value looks like a generated key: long, with many different letters and digits."""
    if not _OPAQUE.fullmatch(value) or len(set(value[:100])) < _LEAST_DIFFERENT:
        return False
    return _is_no_word(value)


def looks_opaque(value: str) -> bool:
    """Whether a value is neither a word nor a small number; enough behind a name like `signature`."""
    return _SHORT_OPAQUE.fullmatch(value) is not None and _is_no_word(value)


def holds_several(value: str) -> bool:
    """Whether a text is a Cookie header, or cookies as JSON."""
    return _SEVERAL.match(value) is not None


def _is_no_word(value: str) -> bool:
    if _UUID.fullmatch(value) or _WORDS.fullmatch(value):
        return False
    return _DIGIT.search(value) is not None or not (value.islower() or value.isupper())
