"""Redaction: what has to go goes, what may stay stays, in linear time, and nothing leaks when something breaks."""

import string
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aftercommit.errors import DeclarationError
from aftercommit.redaction import WITHHELD, Redactor, secret_names
from aftercommit.redaction import national_ids as ids
from aftercommit.redaction import redactor as redaction
from aftercommit.redaction.folding import folded
from aftercommit.redaction.patterns import LookBudget
from aftercommit.redaction.rules import RULES, RedactionRule
from tests.support.sizes import examples

redactor = Redactor()
pytestmark = pytest.mark.contract("L10")

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"

GONE = {
    # e-mail
    "mail from joe.doe+tag@example.co.uk today": "mail from [redacted:email] today",
    "<joe@example.com>, bob@sub.example.org.": "<[redacted:email]>, [redacted:email].",
    "JOE@EXAMPLE.COM": "[redacted:email]",
    "to=иван@пример.рф": "to=[redacted:email]",
    "u=joe%40example.com&x=1": "u=[redacted:email]&x=1",
    "joe@[192.168.0.7]": "[redacted:email]",
    "x@163.com": "[redacted:email]",
    # telephone
    "call +14155552671 or +49 30 901820-0": "call [redacted:phone] or [redacted:phone]",
    "+1 (415) 555-2671": "[redacted:phone]",
    "tel. (415) 555-2671, 415-555-2671, 415.555.2671": "tel. [redacted:phone], [redacted:phone], [redacted:phone]",
    "0044 20 7946 0958": "[redacted:phone]",
    "London 020 7946 0958, Paris 06 12 34 56 78": "London [redacted:phone], Paris [redacted:phone]",
    "Berlin 030/12345678": "Berlin [redacted:phone]",
    "phone: 5551234567": "phone: [redacted:phone]",
    "mobile=0151 2345678 x": "mobile=[redacted:phone] x",
    # payment cards
    "4111111111111111": "[redacted:card]",
    "card 4111-1111-1111-1111 exp 12/27": "card [redacted:card] exp 12/27",
    "5500 0000 0000 0004": "[redacted:card]",
    "amex 3782 822463 10005 or 378282246310005": "amex [redacted:card] or [redacted:card]",
    "6011.0009.9013.9424": "[redacted:card]",
    "order 1234 4111 1111 1111 1111 paid": "order 1234 [redacted:card] paid",
    "1 4111 1111 1111 1111": "1 [redacted:card]",
    # national ids
    "SSN 123-45-6789": "SSN [redacted:national-id]",
    "ssn=123456789": "ssn=[redacted:national-id]",
    "SIN 046 454 286": "SIN [redacted:national-id]",
    "NINO AB 12 34 56 C and AB123456C": "NINO [redacted:national-id] and [redacted:national-id]",
    "DNI 12345678Z, NIE X1234567L": "DNI [redacted:national-id], NIE [redacted:national-id]",
    "CF RSSMRA85T10A562S": "CF [redacted:national-id]",
    "NIR 2 55 08 14 168 025 38": "NIR [redacted:national-id]",
    "Steuer-ID 86 095 742 719, 86095742719": "Steuer-ID [redacted:national-id], [redacted:national-id]",
    "PESEL 44051401359": "PESEL [redacted:national-id]",
    "fnr 13097248022": "fnr [redacted:national-id]",
    "personnummer 811218-9876": "personnummer [redacted:national-id]",
    "hetu 131052-308T": "hetu [redacted:national-id]",
    "rijksregister 85.07.30-033.28": "rijksregister [redacted:national-id]",
    "CPF 529.982.247-25": "CPF [redacted:national-id]",
    "TC 10000000146": "TC [redacted:national-id]",
    "id 11010519491231002X": "id [redacted:national-id]",
    "RRN 900101-1234567": "RRN [redacted:national-id]",
    "NRIC S1234567D": "NRIC [redacted:national-id]",
    "aadhaar 2341 2341 2346": "aadhaar [redacted:national-id]",
    "za 8001015009087": "za [redacted:national-id]",
    "IBAN DE89 3704 0044 0532 0130 00 please": "IBAN [redacted:account] please",
    "GB82WEST12345698765432": "[redacted:account]",
    # addresses
    "from 203.0.113.7:8080, then 10.0.0.1.": "from [redacted:ip]:8080, then [redacted:ip].",
    "host/192.168.1.20": "host/[redacted:ip]",
    "ip-10.0.0.1 x=10.20.30.40, 1.2.3.4-5.6.7.8": "ip-[redacted:ip] x=[redacted:ip], [redacted:ip]-[redacted:ip]",
    "[2001:db8::1]:443 fe80::1%eth0": "[[redacted:ip]]:443 [redacted:ip]%eth0",
    "peer 2001:0db8:85a3:0000:0000:8a2e:0370:7334: refused": "peer [redacted:ip]: refused",
    "::ffff:192.0.2.128": "[redacted:ip]",
    # bearer tokens, JWTs, keys
    "Authorization: Bearer abc123def456": "Authorization: [redacted:secret]",
    "sent bearer s3cr3t-value here": "sent bearer [redacted:token] here",
    "BEARER abcdefgh": "BEARER [redacted:token]",
    f"got {JWT}.": "got [redacted:jwt]",
    "Proxy-Authorization: Basic dXNlcjpwYXNz": "Proxy-Authorization: [redacted:secret]",
    "AKIAIOSFODNN7EXAMPLE": "[redacted:key]",
    "with ghp_16C7e42F292c6912E7710c838347Ae178B4a": "with [redacted:key]",
    "sk_live_4eC39HqLyjWDarjtT1zdp7dc": "[redacted:key]",
    "xoxb-123456789012-abcdefghij": "[redacted:key]",
    "glpat-abcdefghij0123456789": "[redacted:key]",
    "bot 123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw1": "bot [redacted:key]",
    "act_abcdefABCDEF_0123456789012345678901234567890123456789012": "[redacted:key]",
    "signing_key=Zx81kQpLm3vT9sWq2bNc": "signing_key=[redacted:secret]",
    'cache key: "Zx81kQpLm3vT9sWq2bNc"': 'cache key: "[redacted:key]"',
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- done": "[redacted:private-key] done",
    "x -----BEGIN PRIVATE KEY-----\\nMIIE": "x [redacted:private-key]",
    # passwords
    "password=hunter2": "password=[redacted:secret]",
    "password: hunter2, user: joe": "password: [redacted:secret], user: joe",
    "PassWord = 'two words'; next": "PassWord = '[redacted:secret]'; next",
    'db_password="with \\" quote" x': 'db_password="[redacted:secret]" x',
    '{"password": "x y", "n": 1}': '{"password": "[redacted:secret]", "n": 1}',
    '{\\"password\\":\\"a\\\\\\"b\\",\\"n\\":1}': '{\\"password\\":\\"[redacted:secret]\\",\\"n\\":1}',
    '{"secret": {"a": {"b": "c"}, "d": "e"}, "n": 1}': '{"secret": [redacted:secret], "n": 1}',
    '{"tokens_used": 5, "token": ["a", "b"]}': '{"tokens_used": 5, "token": [redacted:secret]}',
    "{'pin': 1234}": "{'pin': [redacted:secret]}",
    ":password => 'x', :user => 'y'": ":password => '[redacted:secret]', :user => 'y'",
    "user[password]=abc&user[name]=joe": "user[password]=[redacted:secret]&user[name]=joe",
    "?access_token=abc&x=1": "?access_token=[redacted:secret]&x=1",
    "%22password%22%3A%22abc%22": "%22password%22%3A%22[redacted:secret]%22",
    "Server=db;Password=p,w;Database=x": "Server=db;Password=[redacted:secret];Database=x",
    "<password>a b</password><n>1</n>": "<password>[redacted:secret]</password><n>1</n>",
    "mysql --password hunter2 --host db": "mysql --password [redacted:secret] --host db",
    "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI": "AWS_SECRET_ACCESS_KEY=[redacted:secret]",
    "Cookie: a=b; sid=c\nHost: x": "Cookie: [redacted:secret]\nHost: x",
    'Authorization: Digest username="joe", response="abc"\nHost: x': "Authorization: [redacted:secret]\nHost: x",
    "postgresql://joe:pa:ss@db:5432/x": "postgresql://[redacted:password]@db:5432/x",
    "https://u:p@ss@example.com/a?b=c@d": "https://[redacted:password]@example.com/a?b=c@d",
    "redis://:p/w@host": "redis://[redacted:password]@host",
    "https://ghtoken@example.com/x.git": "https://[redacted:password]@example.com/x.git",
    'password="unfinished': 'password="[redacted:secret]',
    # hidden by scripts, widths, cases and characters that nobody sees
    "４１１１　１１１１　１１１１　１１１１": "[redacted:card]",
    "٤١١١١١١١١١١١١١١١": "[redacted:card]",
    "4111\u200b1111\u200b1111\u200b1111": "[redacted:card]",
    "4111\u00a01111\u20111111\u22121111": "[redacted:card]",
    "joe\u200b@\u2060example.c\u00adom": "[redacted:email]",
    "joe＠example．com": "[redacted:email]",
    "pass\u200dword=hunter2": "pass\u200dword=[redacted:secret]",
    "ｐａｓｓｗｏｒｄ＝hunter2": "ｐａｓｓｗｏｒｄ＝[redacted:secret]",
    "pa\x00ssword=hunter2": "pa\x00ssword=[redacted:secret]",
    "pAſſword=hunter2": "pAſſword=[redacted:secret]",
    "10.0.０.1": "[redacted:ip]",
    "😀 joe@example.com 😀": "😀 [redacted:email] 😀",
    "İ password=hunter2": "İ password=[redacted:secret]",
}
CANARIES = ("hunter2", "joe@", "4111", "1111", "s3cr3t", "MIIE", "1234567", "example.com", "wJalr", "dXNl", "joe%40")


@pytest.mark.thorough
@pytest.mark.parametrize("text", GONE, ids=repr)
def test_secrets_and_personal_data_are_replaced_by_their_kind(text):
    assert redactor.text(text) == GONE[text]


STAYS = [
    "Investigation INV-123 started by worker-3 in 12.5 ms (status=200)",
    "2025-11-12T10:30:05.123Z 2025-11-12 10:30:05,123 2025-11-12T10:30:05+01:00",
    "12/11/2025 10:30, 12.11.2025, 01-02-2024 10:30:00",
    "550e8400-e29b-41d4-a716-446655440000 00000000-0000-0000-0000-000000000000",
    "41111111-1111-1111-1111-111111111111",
    "v1.2.3, version 10.2.3.4, release=1.2.3.4, Chrome/120.0.0.0 Safari/537.36",
    "d41d8cd98f00b204e9800998ecf8427e e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "commit 43fb219, sha256:9f86d081884c7d659a2feaa0c55ad015",
    "$1,299.00 19.99 EUR 1234567.89 0.4111111111111111 12345678901.5 -0.00012345678901234",
    "epoch 1731660000 1731660000123 1731660000123456 1731660000123456789",
    "4111111111111112 1234567890123456 4111 1111 1111 1112",
    "react@18.2.0 lodash@4.17.21 logo@2x.png user@localhost @decorator a @ b",
    "127.0.0.1:5432 0.0.0.0 ::1 :: 256.1.1.1 1.2.3.4.5 10:30:45 std::vector aa:bb:cc:dd:ee",
    "bearer token is missing; Bearer authentication failed; basic configuration; token expired",
    "max_tokens=512 total_tokens: 1024 token_type=refresh password_length=12 secret_name=db tokenizer=bpe",
    "password=null token=None auth=true secret: false",
    "key=user primary_key=id sort_key: created_at cache_key=investigation:INV-123 monkey=1 author: joe",
    "idempotency_key=550e8400-e29b-41d4-a716-446655440000",
    "https://example.com:8080/users/@joe?x=1 http://[::1]:80/ ftp://host/a:b@c",
    "microphone: muted, mobile: yes, fax=none, telephone pole, account: closed",
    "passed: 12, compass: north, keyboard: qwerty, keywords=a,b, secretary: Ann, pinned: true",
    "task-management-and-other-long-words disk-usage-is-at-ninety-percent",
    "GET /api/v1/investigations/INV-123/logs?limit=100&minLevel=INFO 304",
    "range 100-200, 3 of 5, 10 20 30 40 50 60 70, 1 2 3 4 5 6 7 8 9 10, 2024-01-15T10:00:00Z/2024-01-16",
    "000-00-0000 666-12-3456 12345678A S1234567A AB123456E DE89370400440532013001",
    "5551234567 id 12345678901 86095742718 44051401358 10000000145",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "Übergröße naïve 日本語テキスト 👨‍👩‍👧 نص",
    "a > b, x => y, <b>bold</b>, a->key, i=0; j+=1",
    "",
    " ",
    "\n",
]


@pytest.mark.parametrize("text", STAYS, ids=repr)
def test_what_is_neither_secret_nor_personal_stays_as_it_was(text):
    assert redactor.text(text) == text


def test_nothing_of_a_secret_is_left_behind_it():
    for text, expected in GONE.items():
        left = [canary for canary in CANARIES if canary in redactor.text(text) and canary not in expected]
        assert left == [], text


@given(st.text(max_size=40), st.sampled_from(["hunter2x", "S3cret.99"]), st.text(max_size=40))
@example("İ", "hunter2x", "")
def test_a_password_is_gone_whatever_stands_around_it(before, password, after):
    shown = redactor.text(f"{before} password={password} {after}")

    assert password not in shown


@given(st.text(alphabet=string.printable, max_size=200))
def test_redacting_twice_changes_nothing_more(text):
    once = redactor.text(text)

    assert redactor.text(once) == once


@given(st.text(max_size=300))
@settings(max_examples=examples(300))
def test_no_text_breaks_a_rule(text):
    redactor._redacted(text, LookBudget(len(text)))


PIECES = "password = : \" \\ ' { [ @ . - + ( 4111 1 eyJ :// %22 %3D bearer key a :: < > \u200b ０ -- AKIA DE89".split(
    " "
)
HOSTILE = st.lists(st.sampled_from([*PIECES, " ", "-----BEGIN PRIVATE KEY-----"]), max_size=60).map("".join)


@given(HOSTILE)
@settings(max_examples=examples(500))
def test_no_mixture_of_what_rules_look_for_breaks_one(text):
    redactor._redacted(text, LookBudget(len(text)))


class TestValues:
    def test_nested_values_are_redacted_and_their_shape_stays(self) -> None:
        value = {"a": ["joe@example.com", {"b": ("10.0.0.1", 5, 1.5, True, None)}], "joe@example.com": 1}

        assert redactor.value(value) == {
            "a": ["[redacted:email]", {"b": ["[redacted:ip]", 5, 1.5, True, None]}],
            "[redacted:email]": 1,
        }

    @pytest.mark.parametrize(
        "name",
        "password Password db_password userPassword X-Api-Key authorization Authorization client_secret refreshToken "
        "cookie Set-Cookie pin cvv session_id PHPSESSID privateKey connectionString".split(),
    )
    def test_a_field_with_such_a_name_is_withheld_whatever_it_holds(self, name: str) -> None:
        for held in ("x", 12345, 1.5, ["x"], {"a": "x"}, b"x"):
            assert redactor.value({name: held, "n": 1}) == {name: "[redacted:secret]", "n": 1}
        assert redactor.value({name: None}) == {name: None}
        assert redactor.value({name: ""}) == {name: ""}
        assert redactor.value({name: True}) == {name: True}

    @pytest.mark.parametrize("name", "phone homePhone ssn card_number iban passport accountNumber".split())
    def test_a_number_behind_a_personal_name_goes_and_a_word_stays(self, name: str) -> None:
        shown = redactor.value({name: "AB 1234567", "a": {name: [7654321, {"deep": "7654321", "n": 5}, "muted"]}})

        mark = shown[name]
        assert mark.startswith("[redacted:")
        assert shown["a"] == {name: [mark, {"deep": mark, "n": 5}, "muted"]}

    @pytest.mark.parametrize("name", "tokens max_tokens token_type message key keys id user level author".split())
    def test_a_field_with_another_name_is_shown(self, name: str) -> None:
        assert redactor.value({name: "plain"}) == {name: "plain"}

    def test_a_value_beside_a_secret_name_is_withheld(self) -> None:
        headers = [
            {"name": "Cookie", "value": "a=b"},
            {"key": "x-api-key", "value": "k"},
            {"name": "Host", "value": "h"},
        ]

        assert [each["value"] for each in redactor.value(headers)] == ["[redacted:secret]", "[redacted:secret]", "h"]

    def test_a_key_is_shown_unless_it_looks_like_one(self) -> None:
        assert redactor.value({"key": "user", "n": {"key": "Zx81kQpLm3vT9sWq2bNc"}}) == {
            "key": "user",
            "n": {"key": "[redacted:key]"},
        }

    def test_numbers_that_are_cards_or_phones_go_and_others_stay(self) -> None:
        value = {"n": 4111111111111111, "ts": 1731660000123, "id": 2**63 - 1, "phone": 5551234567, "minus": -(10**30)}

        assert redactor.value(value) == {**value, "n": "[redacted:card]", "phone": "[redacted:phone]"}

    def test_types_that_hold_no_secret_stay_and_unknown_ones_are_withheld(self) -> None:
        plain = [UUID(int=5), datetime(2025, 1, 1, tzinfo=UTC), Decimal("1.5")]

        assert redactor.value(plain) == plain
        assert redactor.value({"a": object(), "b": b"bytes"}) == {"a": WITHHELD, "b": WITHHELD}

    def test_what_is_nested_too_deep_is_withheld(self) -> None:
        value: Any = "joe@example.com"
        for _ in range(1000):
            value = [value]

        shown = str(redactor.value(value))
        assert WITHHELD in shown
        assert "joe" not in shown

    def test_names_that_become_equal_stay_apart(self) -> None:
        shown = redactor.value({"a@example.com": 1, "b@example.com": 2, "[redacted:email]": 3})

        assert sorted(shown.values()) == [1, 2, 3]

    def test_many_names_that_become_equal_take_no_longer_than_others(self) -> None:
        shown = redactor.value({f"{number}@example.com": number for number in range(20_000)})

        assert len(shown) == 20_000
        assert list(shown.values())[:1000] == list(range(1000))


class TestFailure:
    @pytest.mark.parametrize(
        "error", [RuntimeError("x"), RecursionError(), MemoryError(), ValueError("joe@example.com")]
    )
    def test_a_rule_that_fails_withholds_the_text(self, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = Redactor()

        def fail(text: str, lowered: str, looks: LookBudget) -> Any:
            raise error

        monkeypatch.setattr(broken, "_rules", [RedactionRule(("email",), fail, lambda *_: True)])

        assert broken.text("joe@example.com") == WITHHELD
        # Names are texts, too.
        names = {"long name one": ["joe@example.com"], "long name two": 1}
        assert broken.value(names) == {WITHHELD: [WITHHELD], f"{WITHHELD} 2": 1}

    def test_a_value_that_cannot_be_walked_is_withheld(self) -> None:
        class Broken(dict[str, Any]):
            def items(self) -> Any:
                raise RuntimeError("joe@example.com")

        assert redactor.value(Broken(a=1)) == WITHHELD


class TestDeclaration:
    def test_kinds_can_be_kept_and_patterns_and_names_added(self) -> None:
        own = Redactor(keep=("ip",), names=("Shoe_Size",), patterns={"employee": r"EMP-\d{4}"})

        assert own.text("10.0.0.1 EMP-1234 joe@example.com") == "10.0.0.1 [redacted:employee] [redacted:email]"
        assert own.value({"shoe_size": 43}) == {"shoe_size": "[redacted:secret]"}

    def test_a_kind_that_is_not_known_or_a_pattern_that_cannot_be_read_is_refused(self) -> None:
        with pytest.raises(DeclarationError, match=r"\['mood'\] are no kinds"):
            Redactor(keep=("mood",))
        with pytest.raises(DeclarationError, match=r"pattern '\(' for 'x' cannot be read"):
            Redactor(patterns={"x": "("})

    def test_the_version_changes_with_the_rules_and_with_nothing_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        versions = {
            Redactor().version,
            Redactor(keep=("ip",)).version,
            Redactor(names=("x",)).version,
            Redactor(patterns={"x": "y"}).version,
            Redactor(patterns={"x": "z"}).version,
        }
        assert len(versions) == 5
        assert Redactor().version == Redactor().version
        monkeypatch.setattr(redaction, "_source", lambda: b"other rules")
        assert Redactor().version not in versions

    def test_every_rule_says_what_it_finds(self) -> None:
        known = {kind for rule in RULES for kind in rule.kinds}
        for text in GONE:
            searched = folded(text, LookBudget(len(text)))[0]
            for rule in RULES:
                assert {span[2] for span in rule.find(searched, searched.lower(), LookBudget(len(searched)))} <= set(
                    rule.kinds
                )
        assert known >= {"email", "phone", "card", "national-id", "ip", "token", "jwt", "key", "secret", "password"}

    def test_every_name_of_a_secret_has_a_hint_by_which_it_is_found(self) -> None:
        personal = chain.from_iterable(secret_names._PERSONAL.values())
        names = [*secret_names._SECRETS, *secret_names._SECRET_WORDS, *personal]

        assert [name for name in names if not any(hint in name for hint in secret_names.HINTS)] == []


CHECKS: list[tuple[Callable[[str], bool], list[str]]] = [
    # Of cards, and of Canada.
    (ids.luhn, ["4111111111111111", "79927398713", "046454286", "130692544"]),
    (ids.india_aadhaar, ["234123412346"]),
    (ids.spain, ["12345678Z", "X1234567L"]),
    (ids.italy, ["RSSMRA85T10A562S", "MRTMTT91D08F205J"]),
    (ids.france, ["255081416802538"]),
    (ids.germany, ["86095742719", "47036892816", "65929970489"]),
    (ids.poland, ["44051401359", "02070803628"]),
    (ids.norway, ["13097248022"]),
    (ids.sweden, ["8112189876"]),
    (ids.finland, ["131052-308T"]),
    (ids.belgium, ["85073003328", "17073003384"]),
    (ids.brazil, ["52998224725", "11144477735"]),
    (ids.turkey, ["10000000146"]),
    (ids.china, ["11010519491231002X"]),
    (ids.singapore, ["S1234567D"]),
    (ids.south_africa, ["8001015009087"]),
    (ids.australia, ["123456782"]),
    (ids.iban, ["DE89370400440532013000", "GB82WEST12345698765432", "NO9386011117947"]),
]


@pytest.mark.parametrize(("check", "issued"), CHECKS, ids=[check.__name__ for check, _ in CHECKS])
def test_check_digits_accept_what_was_issued_and_refuse_most_mistakes(check, issued):
    for number in issued:
        assert check(number), number
        place = len(number) - 2
        mistakes = [number[:place] + digit + number[place + 1 :] for digit in "0123456789" if digit != number[place]]
        refused = sum(not check(mistake) for mistake in mistakes)
        assert refused >= 7, number
