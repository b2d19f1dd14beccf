"""Redaction of what other countries, scripts and careful writers write, and of the ordinary lines that look like it."""

from typing import Any

import pytest

from aftercommit.redaction import Redactor

redactor = Redactor()
pytestmark = pytest.mark.contract("L10")

SECRET, PHONE, EMAIL, IP = "[redacted:secret]", "[redacted:phone]", "[redacted:email]", "[redacted:ip]"

PHONES = {
    # Brazil
    "(11) 91234-5678": PHONE,
    "ligue (21) 3123-4567 hoje": f"ligue {PHONE} hoje",
    "whats (11)91234-5678": f"whats {PHONE}",
    "11 91234-5678": PHONE,
    # Russia
    "8 (495) 123-45-67": PHONE,
    "тел 8(495)123-45-67": f"тел {PHONE}",
    "8-800-555-35-35": PHONE,
    "8 800 555 35 35": PHONE,
    "звоните (495) 123-45-67": f"звоните {PHONE}",
    # China, and others who write nothing between
    "13812345678": PHONE,
    "user 13812345678 logged in": f"user {PHONE} logged in",
    "联系人 ： 19912345678。": f"联系人 ： {PHONE}。",
    "１３８１２３４５６７８": PHONE,
    "14155552671": PHONE,
    # with 00
    "0041446681800": PHONE,
    "00 41 44 668 18 00": PHONE,
    "00 33 6 12 34 56 78": PHONE,
    "call 0014155552671 now": f"call {PHONE} now",
    "tel 0301234567 2nd floor": f"tel {PHONE} 2nd floor",
}
NAMES = {
    "pаssword=hunter2": f"pаssword={SECRET}",
    "PАSSWОRD: hunter2": f"PАSSWОRD: {SECRET}",
    "pαsswοrd=hunter2": f"pαsswοrd={SECRET}",
    "tоken=abc": f"tоken={SECRET}",
    "пароль=hunter2": f"пароль={SECRET}",
    "Пароль: hunter2": f"Пароль: {SECRET}",
    '{"пароль_пользователя": "x y"}': f'{{"пароль_пользователя": "{SECRET}"}}',
    "ваш пароль hunter2": f"ваш пароль {SECRET}",
    "密码=hunter2": f"密码={SECRET}",
    "用户密码：hunter2": f"用户密码：{SECRET}",
    "密碼: hunter2": f"密碼: {SECRET}",
    "パスワード: hunter2": f"パスワード: {SECRET}",
    "비밀번호=hunter2": f"비밀번호={SECRET}",
    "סיסמה: hunter2": f"סיסמה: {SECRET}",
    "κωδικός πρόσβασης: hunter2": f"κωδικός πρόσβασης: {SECRET}",
    "hasło=hunter2": f"hasło={SECRET}",
    "heslo: hunter2": f"heslo: {SECRET}",
    "jelszó=hunter2": f"jelszó={SECRET}",
    "şifre=hunter2": f"şifre={SECRET}",
    "parola=hunter2": f"parola={SECRET}",
    "mật_khẩu=hunter2": f"mật_khẩu={SECRET}",
    "adgangskode: hunter2": f"adgangskode: {SECRET}",
    "mot de passe: hunter2": f"mot de passe: {SECRET}",
    "Mot de passe hunter2": f"Mot de passe {SECRET}",
    "Passwort: hunter2": f"Passwort: {SECRET}",
    "wachtwoord hunter2": f"wachtwoord {SECRET}",
}
ADDRESSES = {
    "ann [at] example.com": EMAIL,
    "mail ann(at)example.com now": f"mail {EMAIL} now",
    "ann (AT) example (DOT) com": EMAIL,
    "ann[@]example[.]com": EMAIL,
    "ann@example[.]com": EMAIL,
    "ann {at} mail [dot] example [dot] org": EMAIL,
    "write to ann.lee at example dot com please": f"write to {EMAIL} please",
    "ann@localhost": EMAIL,
    "from ann.lee@LOCALHOST: bounced": f"from {EMAIL}: bounced",
    "203[.]0[.]113[.]7": IP,
    "beacon to 203.0.113[.]7:8080": f"beacon to {IP}:8080",
    "203(.)0(.)113(.)7": IP,
    "203[dot]0[dot]113[dot]7": IP,
    "hxxp://ann:pw@evil.example/x": "hxxp://[redacted:password]@evil.example/x",
    "hxxps[:]//ann:pw@evil[.]example": "hxxps[:]//[redacted:password]@evil[.]example",
}
PAIRS = {
    '{"Key":"password","Value":"hunter2"}': f'{{"Key":"password","Value":"{SECRET}"}}',
    '{"field":"password","value":"hunter2"}': f'{{"field":"password","value":"{SECRET}"}}',
    '{"header":"Cookie","value":"a=b"}': f'{{"header":"Cookie","value":"{SECRET}"}}',
    '{"key":"api_key","val":"hunter2"}': f'{{"key":"api_key","val":"{SECRET}"}}',
    '{"field":"password","newValue":"hunter2"}': f'{{"field":"password","newValue":"{SECRET}"}}',
}
GONE = PHONES | NAMES | ADDRESSES | PAIRS

STAYS = [
    "1.2.3.4-beta 1.2.3.4-rc1 2.0.0.1+build7 4.5.6.7-SNAPSHOT",
    # Ten digits are a time, an order, a row: too many of them are nobody's telephone.
    "9876543210 1731660000 5551234567",
    "freed 17179869184 bytes, 16106127360 B, heap=13812345678 size:13812345678 /orders/13812345678 #13812345678",
    '{"bytes": 13812345678, "total":15000000000}',
    "12345678901 10000000145 20000000000 99999999999",
    "00000012345 000123 0001234567 00 12 34 56 78 9a 00 11 22 33 44 55 66 77 88",
    "(11) 2024-2025 (1) 1234 (12) of 5678-1234x 8 (of 12) 8-12-34",
    "rabbit@localhost celery@localhost root@localhost postgres@localhost user@localhost ann@local",
    "regex [.] and (.) match a[.]b; stopped (at) line 3; [at] main",
    "look at line dot three; at example; the dot com boom",
    "list[0] a(b) f(at) {at} [@] x[:]",
    "отряд: 5, рост: 180, пароход=белый, отрыв: 3, акт: 12, касса=5",
    "пароль изменён; забыли пароль? пароль: null",
    "密码错误 パスワードを変更しました 비밀번호가 틀렸습니다",
    "parole: 12 clave=user passe: 3 parolado",
    '{"field":"name","value":"Ann"} {"header":"Accept","value":"*/*"} {"key":"level","val":"INFO"}',
    '{"field":"password","valid":false,"message":"too short"}',
]

# Lines as programs write them: nothing here is personal, and nothing may change.
ORDINARY = """\
2025-11-12T10:30:05.123Z INFO api-gateway GET /api/v1/orders/10482/items?page=2&limit=50 200 12ms
Started GET "/orders/42" for 127.0.0.1 at 2025-11-12 10:30:05 +0000
[2025-11-12 10:30:05,123] {taskinstance.py:1159} INFO - Dependencies all met for <TaskInstance: etl.load>
kernel: [12345.678901] oom-kill: constraint=CONSTRAINT_NONE, nodemask=(null), oom_score_adj=0
Full GC (Ergonomics) [PSYoungGen: 2048K->0K(9216K)] 13824K->9500K(23552K), 0.0412351 secs
LOG:  checkpoint complete: wrote 8421 buffers (51.4%); 0 WAL file(s) added, 1 removed; write=269.988 s
duration: 1043.221 ms  statement: select id, name from orders where created_at > now() - interval '1 day'
java.lang.NullPointerException: null at com.example.shop.OrderService.place(OrderService.java:214)
Traceback (most recent call last): File "/srv/app/main.py", line 88, in <module>
consumer group=billing topic=orders partition=12 offset=9876543210 lag=0
request id=req-00017-ab12cd trace=4bf92f3577b34da6a3ce929d0e0e4736 span=00f067aa0ba902b7
retry 3/5 in 800 ms (backoff 1.5x), deadline 2025-11-12T10:31:00Z
disk /dev/sda1: 82% used (410.2 GiB of 500 GiB), inodes 12%
memory: rss=1342177280 heap_used=13421772800 heap_limit=17179869184
build 1.4.2.7-rc3 (commit 9f8e7d6c5b4a), go1.22.1 linux/amd64
deploy shop@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
npm install react@18.2.0 @types/node@20.11.5 done in 3.2s
Cache-Control: private, max-age=0, must-revalidate; ETag: W/"33a64df5"
exit status 137 (killed), restarts: 4, uptime 3 days 04:12:09
latency p50=3.4ms p99=17.2ms max=1453ms over 10000 requests
Rows matched: 1200  Changed: 1187  Warnings: 0
order 10048201 paid: 129.90 EUR (net 109.16, vat 20.74), invoice 2025-004711
task 17 moved from submitted to approved by role 31 at 10:30
tokens: prompt 812, completion 96, total 908; max_tokens=4096
password reset requested; password policy: at least 12 characters
the key "orders" was not found in the cache; keys: 3
GET https://cdn.example.com:8443/assets/app.3f2a1b9c.js 304
worker-3 heartbeat seq 18446744073709551615 epoch 1731660000123
Заказ 4711 оплачен, сумма 1299.00 руб., доставка 12.11.2025
注文 4711 を受け付けました（合計 12,800 円）
""".splitlines()


@pytest.mark.parametrize("text", GONE, ids=ascii)
def test_what_other_countries_and_scripts_write_is_replaced(text: str) -> None:
    assert redactor.text(text) == GONE[text]
    assert redactor.text(GONE[text]) == GONE[text]


@pytest.mark.parametrize("text", [*STAYS, *ORDINARY], ids=ascii)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    assert redactor.text(text) == text


VALUES: list[tuple[Any, Any]] = [
    ({"Key": "password", "Value": "x"}, {"Key": "password", "Value": SECRET}),
    ({"KEY": "DB_PASSWORD", "VALUE": 1}, {"KEY": "DB_PASSWORD", "VALUE": SECRET}),
    ({"field": "password", "value": "x"}, {"field": "password", "value": SECRET}),
    ({"header": "Cookie", "value": "x"}, {"header": "Cookie", "value": SECRET}),
    ({"value": "x", "header": "Cookie"}, {"value": SECRET, "header": "Cookie"}),
    ({"key": "api_key", "val": "x"}, {"key": "api_key", "val": SECRET}),
    ({"Name": "token", "Value": ["x"]}, {"Name": "token", "Value": SECRET}),
    ({"field": "password", "old": "x", "new": "y"}, {"field": "password", "old": SECRET, "new": SECRET}),
    ({"param": "pin", "value": 1234}, {"param": "pin", "value": SECRET}),
    ({"name": "user", "key": "password", "value": "x"}, {"name": "user", "key": "password", "value": SECRET}),
    ({"phone": 13812345678, "to": "13812345678"}, {"phone": PHONE, "to": PHONE}),
    ({"пароль": "x", "pаssword": "y", "密码": "z"}, {"пароль": SECRET, "pаssword": SECRET, "密码": SECRET}),
]
SHOWN: list[Any] = [
    # A number that is one, and no text, is mostly a size or a row.
    {"bytes": 13812345678, "id": 14155552671},
    {"field": "level", "value": "INFO", "old": 1, "new": 2},
    {"name": "Ann", "old": "x"},
    {"key": None, "value": "x"},
    {"отряд": "x"},
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=repr)
def test_a_value_is_found_by_the_name_beside_it(value: Any, expected: Any) -> None:
    assert redactor.value(value) == expected


@pytest.mark.parametrize("value", SHOWN, ids=repr)
def test_a_value_beside_another_name_is_shown(value: Any) -> None:
    assert redactor.value(value) == value


def test_a_number_stays_one_also_where_patterns_of_ones_own_are_asked() -> None:
    own = Redactor(patterns={"employee": "^77"})

    assert own.value({"bytes": 13812345678, "n": 4111111111111111, "who": 775}) == {
        "bytes": 13812345678,
        "n": "[redacted:card]",
        "who": "[redacted:employee]5",
    }
