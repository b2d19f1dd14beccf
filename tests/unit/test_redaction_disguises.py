"""Secrets in the forms that people and programs really write them in, and what looks like these and is none."""

from decimal import Decimal
from typing import Any

import pytest

from aftercommit.redaction import Redactor

redactor = Redactor()
pytestmark = pytest.mark.contract("L10")

SECRET, PASSWORD = "[redacted:secret]", "[redacted:password]"
BCRYPT = "$2b$12$R9h/cIPz0gi.URNNX3kh2OPST9/PgBkqquzi.Ss7KIUgO2t0jWMUW"

NAMES = {
    "DB_PASS=hunter2": f"DB_PASS={SECRET}",
    "MYSQL_PASS=hunter2 x": f"MYSQL_PASS={SECRET} x",
    "SMTP_PASS: hunter2": f"SMTP_PASS: {SECRET}",
    "db.pass=hunter2": f"db.pass={SECRET}",
    "dbpass=hunter2": f"dbpass={SECRET}",
    "userPass: 'hunter2'": f"userPass: '{SECRET}'",
    "REDIS_AUTH=hunter2": f"REDIS_AUTH={SECRET}",
    "redisauth=hunter2": f"redisauth={SECRET}",
    "x-auth: hunter2": f"x-auth: {SECRET}",
    "STRIPE_KEY=hunter2": f"STRIPE_KEY={SECRET}",
    "stripe_key=hunter2": f"stripe_key={SECRET}",
    "export APP_KEY=hunter2;": f"export APP_KEY={SECRET};",
    "card_pin=1234": f"card_pin={SECRET}",
    "contraseña=hunter2": f"contraseña={SECRET}",
    "contrasen\u0303a=hunter2": f"contrasen\u0303a={SECRET}",
    "senha: hunter2": f"senha: {SECRET}",
    "Lösenord=hunter2": f"Lösenord={SECRET}",
}
SEPARATORS = {
    "password == hunter2": f"password == {SECRET}",
    "password != hunter2": f"password != {SECRET}",
    "password:: hunter2": f"password:: {SECRET}",
    "password->hunter2": f"password->{SECRET}",
    "password -> hunter2": f"password -> {SECRET}",
    "password[]=hunter2": f"password[]={SECRET}",
    "password=<hunter2>": f"password=<{SECRET}>",
    "password=b'hunter2'": f"password=b'{SECRET}'",
    "password:\nhunter2": f"password:\n{SECRET}",
    "password:\r\n\r\nhunter2": f"password:\r\n\r\n{SECRET}",
    "passwords:\n  - hunter2": f"passwords:\n  - {SECRET}",
    "password\n=\nhunter2": f"password\n=\n{SECRET}",
    "password: |\n  hunter2\n  more2\nuser: joe": f"password: |\n  {SECRET}\nuser: joe",
    "password: >-\n  hunter2": f"password: >-\n  {SECRET}",
    "password\u2028=hunter2": f"password\u2028={SECRET}",
    "password=\u2029hunter2": f"password=\u2029{SECRET}",
    '{"name":"password","value":"hunter2"}': f'{{"name":"password","value":"{SECRET}"}}',
    '\\"name\\":\\"password\\",\\"value\\":\\"hunter2\\"': f'\\"name\\":\\"password\\",\\"value\\":\\"{SECRET}\\"',
    "- name: DB_PASSWORD\n  value: hunter2\n": f"- name: DB_PASSWORD\n  value: {SECRET}\n",
    '<input name="password" value="hunter2">': f'<input name="password" value="{SECRET}">',
    '<input value="hunter2" type="password"/>': f'<input value="{SECRET}" type="password"/>',
    '<add key="DbPassword" value="hunter2" />': f'<add key="DbPassword" value="{SECRET}" />',
    '<property name="password">hunter2</property>': f'<property name="password">{SECRET}</property>',
    '<wsse:Password Type="x">hunter2</wsse:Password>': f'<wsse:Password Type="x">{SECRET}</wsse:Password>',
    "<password><![CDATA[hunter2]]></password>": f"<password>{SECRET}</password>",
    "<cookies>sid=x</cookies><sig>aB3xY9</sig>": f"<cookies>{SECRET}</cookies><sig>[redacted:token]</sig>",
    "[('Authorization', 'hunter2x'), ('Host', 'h')]": f"[('Authorization', '{SECRET}'), ('Host', 'h')]",
    '[["Host", "h"], ["Authorization", "hunter2x"]]': f'[["Host", "h"], ["Authorization", "{SECRET}"]]',
    'cookies: {"sid": "hunter2"} x': f"cookies: {SECRET} x",
}
COMMANDS = {
    "curl -u ada:hunter2 https://x.y": f"curl -u ada:{PASSWORD} https://x.y",
    "curl --user ada:hunter2": f"curl --user ada:{PASSWORD}",
    "curl --proxy-user 'ada:hunter2'": f"curl --proxy-user 'ada:{PASSWORD}'",
    "mysql -h db -phunter2 shop": f"mysql -h db -p{PASSWORD} shop",
    "sshpass -p hunter2 ssh x": f"sshpass -p {PASSWORD} ssh x",
    "redis-cli -a hunter2 ping": f"redis-cli -a {PASSWORD} ping",
    "docker login -p hunter2": f"docker login -p {PASSWORD}",
    "['mysqld', '--password', 'hunter2']": f"['mysqld', '--password', '{SECRET}']",
    "passwd hunter2": f"passwd {SECRET}",
    "login with password hunter2 failed": f"login with password {SECRET} failed",
    "requirepass hunter2": f"requirepass {SECRET}",
    "ALTER USER ada PASSWORD 'two words'": f"ALTER USER ada PASSWORD '{SECRET}'",
    "see //ada:hunter2@host/x": f"see //{PASSWORD}@host/x",
    "jdbc:oracle:thin:ada/hunter2@//db:1521": f"jdbc:oracle:thin:{PASSWORD}@//db:1521",
    "sqlplus ada/hunter2@db": f"sqlplus {PASSWORD}@db",
    "/x?sig=abc&n=1": f"/x?sig={SECRET}&n=1",
    "/x?n=1&X-Amz-Signature=ab12#y": f"/x?n=1&X-Amz-Signature={SECRET}",
    "/callback?code=4x&state=1": f"/callback?code={SECRET}&state=1",
}
NUMBERS = {
    "card4111111111111111": "card[redacted:card]",
    "card_4111111111111111_x": "card_[redacted:card]_x",
    "4111111111111111EUR": "[redacted:card]EUR",
    "4111  1111  1111  1111": "[redacted:card]",
    "4111\n1111\n1111\n1111": "[redacted:card]",
    "4111/1111/1111/1111": "[redacted:card]",
    "n=4111+1111+1111+1111": "n=[redacted:card]",
    "4111_1111_1111_1111": "[redacted:card]",
    '{"n": 4111111111111111.0}': '{"n": [redacted:card].0}',
    "4111 1111 1111 1111 cvv 123": f"[redacted:card] cvv {SECRET}",
    "cvc: 123": f"cvc: {SECRET}",
    "your pin is 1234": f"your pin is {SECRET}",
    "phone (555) 123-4567": "phone [redacted:phone]",
    "tel. 0301234567": "tel. [redacted:phone]",
    "tel: 030 1234567, fax no 5551234": "tel: [redacted:phone], fax no [redacted:phone]",
    "bsn: 123456782, bsn 123456782": "bsn: [redacted:national-id], bsn [redacted:national-id]",
    "AHV 756.9217.0769.85": "AHV [redacted:national-id]",
    "7569217076985": "[redacted:national-id]",
}
ADDRESSES = {
    '"ada love"@example.com': "[redacted:email]",
    "ada&#64;example.com": "[redacted:email]",
    "ada&#x40;example.com": "[redacted:email]",
    "ada&commat;example.com": "[redacted:email]",
    '{"m":"ada\\u0040example.com"}': '{"m":"[redacted:email]"}',
    "ada%2540example.com": "[redacted:email]",
    "v203.0.113.7": "v[redacted:ip]",
    "peer_10.0.0.1": "peer_[redacted:ip]",
    "ip-203-0-113-7.ec2.internal": "ip-[redacted:ip].ec2.internal",
    "from 3C:22:FB:aa:0b:1c up": "from [redacted:mac] up",
    "3c-22-fb-aa-0b-1c": "[redacted:mac]",
}
KEYS = {
    "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXX": "https://[redacted:key]",
    "https://discord.com/api/webhooks/123456/abc-DEF_ghi": "https://[redacted:key]",
    "ATATT3xFfGF0abcdefghijklmnop=1A2B": "[redacted:key]",
    "gsk_abcdefghijklmnopqrstuvwx": "[redacted:key]",
    "r8_abcdefghijklmnopqrstuvwxyz0123456789ab": "[redacted:key]",
    "tvly-dev-abcdefghijklmnop": "[redacted:key]",
    f"hash {BCRYPT} x": "hash [redacted:key] x",
    "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$RdescudvJCsgt3ub+b7dWRWJTmaaJObG": "[redacted:key]",
    "signature=Zx81kQpLm": "signature=[redacted:token]",
}
GONE = NAMES | SEPARATORS | COMMANDS | NUMBERS | ADDRESSES | KEYS

STAYS = [
    "monkey=1 donkey: x compass=north passed=3 pass=true bypass: on passes: 2 turnkey=yes",
    "primary_key=id sort_key=name PRIMARY_KEY=id CACHE_KEY=user:17 PARTITION_KEY=tenant",
    "render_pass=shadow first_pass: 12 gpio_pin=13 requires_auth: basic oauth=google author=joe",
    "auth: enabled, password: required, token: expired",
    "auth:\n  enabled: true\n  mode: basic",
    "signature: valid, sig=11, signature=hmac-sha, code: 200, code=EUR status_code=404",
    "/x?code=404&page=2&key=user&sort=name",
    "password reset, password policy v2, password sha256, password for user17, password INV-123 2025-11-12",
    "the password must be changed; passwd file; pin 13; cvv check; otp sent; tel aviv; mobile 17.4",
    "fax 2025-11-12 10:30",
    "docker run -u 1000:1000 --user node:node -p 8080:80; mkdir -p build; cp -a x y; ls -w; tar -u",
    "mysql -p shop; grep -pattern x; mysql -P 3306",
    "// a comment //joe /a//b http://x.y/z //cdn.example.com/a.js file:///tmp/a",
    "4111111111111112 x4111111111111112 id_1731660000123456 4111/1111/1111/1112 4000\n5000 6000\n7000",
    "0.4111111111111111 1.4111111111111111 aa4f4111111111111111bcde",
    "2024\n2025\n2026\n2027 1200_1300_1400_1500",
    "v1.2.3.4 jdk1.8.0.202 lib_1.2.3.4 v10.2.3.4 ip-address ip-1-2-3 host-1 host-300-1-1-1",
    "25-11-12-10-30-45 10:30:45:12:13:14 aa:bb:cc 16:27:ac:a5:76:28:2d:36:63:1b:56:4d:eb:df:a6:48",
    "cookies: 3, cookies=enabled; fields ['password', 'email']; (\"name\", \"joe\")",
    '<input name="user" value="joe"><b>bold</b><a href="/x">y</a> <span id="keyboard" value="q">',
    '{"name":"level","value":"INFO"} - name: LOG_LEVEL\n  value: debug',
    "$5 and $10, ${HOME}, a$2$b, price: $1,299.00",
    "hooks.slack.com is down; gsk_short r8_x tvly-x ATATT",
    "naïve Übergröße café cafe\u0301 ñandú",
    "756.9217.0769.84 7569217076984",
    "&#64; a &amp; b; x40 \\u0041 40% of a.b",
]


@pytest.mark.parametrize("text", GONE, ids=repr)
def test_a_secret_in_disguise_is_replaced_by_its_kind(text: str) -> None:
    assert redactor.text(text) == GONE[text]
    assert redactor.text(redactor.text(text)) == redactor.text(text)


@pytest.mark.parametrize("text", STAYS, ids=repr)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert redactor.text(text) == text


VALUES: list[tuple[Any, Any]] = [
    ({"headers": [["Authorization", "x"], ["Host", "h"]]}, {"headers": [["Authorization", SECRET], ["Host", "h"]]}),
    ({"headers": [("X-Api-Key", "k")]}, {"headers": [["X-Api-Key", SECRET]]}),
    ({"args": ["--password", "hunter2", "--host", "db"]}, {"args": ["--password", SECRET, "--host", "db"]}),
    ({"args": ["--password", "--host", "db"]}, {"args": ["--password", "--host", "db"]}),
    ({"args": ["--password=hunter2", "db"]}, {"args": [f"--password={SECRET}", "db"]}),
    ({"cookies": {"sid": "x"}}, {"cookies": SECRET}),
    ({"cookies": ["x"], "set-cookie": "y"}, {"cookies": SECRET, "set-cookie": SECRET}),
    ({"cookies": "sid=x"}, {"cookies": SECRET}),
    ({"params": {"sig": "aB3xY9", "page": 2}}, {"params": {"sig": "[redacted:token]", "page": 2}}),
    ({"n": 4111111111111111.0}, {"n": "[redacted:card]"}),
    ({"n": Decimal("4111111111111111.0")}, {"n": "[redacted:card]"}),
    ({"phone": 5551234567.0}, {"phone": "[redacted:phone]"}),
    ({"DB_PASS": "x", "dbPass": "y", "REDIS_AUTH": 1}, {"DB_PASS": SECRET, "dbPass": SECRET, "REDIS_AUTH": SECRET}),
]  # fmt: skip
SHOWN: list[Any] = [
    {"required": ["password", "email"]},
    {"cookies": 3, "cookies_enabled": True},
    {"cookies": "accepted"},
    {"args": ["-v", "x", "--host", "db"]},
    {"points": [["x", 1], ["level", "high"]]},
    {"primary_key": "id", "sortKey": "name", "renderPass": "shadow", "passed": 3},
    {"signature": "valid", "sig": 11, "code": "EUR"},
    {"ratio": 0.5, "large": 1e300, "whole": 12.0, "endless": float("inf"), "exact": Decimal("19.99")},
]


@pytest.mark.parametrize(("value", "expected"), VALUES, ids=repr)
def test_a_secret_is_found_by_where_it_stands_in_a_structure(value: Any, expected: Any) -> None:
    assert redactor.value(value) == expected


@pytest.mark.parametrize("value", SHOWN, ids=repr)
def test_a_structure_without_secrets_is_shown(value: Any) -> None:
    assert redactor.value(value) == value
