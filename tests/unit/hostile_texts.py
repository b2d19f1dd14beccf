"""What hostile texts are made of: each, repeated for long enough, is the worst that we know for some rule of redaction.
And values of very many parts, of which each has to cost little.

Whoever adds a rule adds what is worst for it. `python -m tools.redaction_speed` tells how long each takes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

UNITS: Final = [
    "1", "4234 ", "4 1 ", "3782 822463 10005 ", "4111111111111112 ", "12345678901 ", "110105194912310021 ", "@", "a@",
    "a@b.", "joe@example.com ", "a" * 63 + "@", "=", "a=", "password=", 'password="', 'password=\\"', "password=[",
    "secret:{", "key=", 'key="', "key={", "key=Ab3dEf6hIj9lMn2pQr5t ", "eyJ-", "eyJ", "eyJaaaaaaaa.", "bearer ",
    "bearer abcdefgh ", "://", "://a:b/", "://a:b@", "-----BEGIN PRIVATE KEY-----", "-----BEGIN " + "A" * 39, "-", ".",
    "1.", "1.2.3.4 ", ":", "a:", "2001:db8::1 ", "1:2:3:4:5:6:7 ", "+", "+1 ", "+1234567", "030 12 ", "(0", "415 555 ",
    "123-45-", "550e8400-e29b-41d4-a716-446655440000 ", "deadbeef", "x", "_", "\\", '"', '{"a":', "[[", "%22", "a%3D",
    "\u200b", "a\u200b", "٤١١١ ", "４", "😀", "the quick brown fox ", "DE89 3704 ", "DE89AAAA", "AB 12 34 ", "ABCDEF12",
    "--password ", "<password>", "password", "sk-", "ghp_aaaa", "AKIA", "basic YWJj= ", "token", "cookie: a=b; ", ":AA",
    "tel: 1 2 3 4 5 ", '{"password":"x","n":12345},', "SG.aaaaaaaaaaaaaaaaaaaa", "İ", "00 ", "2024-01-", "key-", "a.",
    "a.b@", "key=value;", "password='", "'\"", "\\\"", "Ab3/", "\x00", "\u2028", "\ud800", "1 ", "12 ", "123 ", "1234 ",
    "(12)", "12/12/", "AA11 ", "pin=1 ", "phone=[ ", "phone={", "phone: 1 2 3 4 5 6 7 8 9 0 ", "ssn=[x", "cc=", "--a ",
    "<pw>", "secret=[]", "authorization: ", "authorization: digest ", "passpass", "keykey", "token:", "[::1]",
    "bearer%20", "://a:", "a@a.a", "a@[1", "%40", "act_aaaaaa_", "-----BEGIN PRIVATE KEY----------END",
    "2024-01-01T10:00:00", "131052-", "ſ", "pass\u200bword", "key=aaaaaaaaaaaaaaaaaaaaaaaa", "\U000e0001",
    "👨\u200d👩\u200d👧", "٤١٥ ٥٥٥ ", "-aaaaaaaaa ", "_________ ", ".aaaaaaaaaaaaaaa ", "1 2 3 4 5 6 7 x", "1234567 ",
    "A1 ", "AA AA1A", "a@b c@d ", "password->", "password[[", "password\n=\n", "password:\n", "password: |\n a\n",
    "password=<", "password=b'", "passwd a1", "password ", "password 'a", "cvv 123 ", "cvv ", "tel 1 2 3 4 ",
    "phone (1", "bsn 1", "name: pw value: ", "name=a value=", "key: ", "('abcde',", "('password','", "[[", "<a ",
    "<a b=c>", "<a b='", "<input name=pw value=x>", "<property name=pw>", "<phone a>", "<pw a>", "//", "//a", "//a:b@",
    "oracle:thin:a/", "sqlplus a/b", "?code=a&", "?sig=1", "-u a:b ", "-u a", "-px ", "mysql -px ", "mysql ", " -p x",
    "\"@", "\"a\"@b.cd ", "\"a", "&#64;", "a&#64;b.", "\\u0040", "ip-1-2-3-4 ", "ip-1-2-", "aa:bb:cc:dd:ee:f",
    "aa:bb:cc:dd:ee:ff ", "aa-", "$2b$", "$2b$10$aaaa", "$1$a", "hooks.slack.com/", "/webhooks/", "A_PASS=x ",
    "aBcPass=1 ", "A_KEY=1 ", "4111_", "4111\n", "4111  ", "a411111111111111", "4111111111111112x",
    "4111111111111112.0 ", "a\u0301", "ñ", "cookies={", "cookies: a=b; ", "ATATT3", "x_1.2.3.4", "v100.1.1.1 ",
    "--password', '", "signature=Ab3dEf6 ",
    "[.]", "a[.]", "1[.]2[.]3[.]4 ", "[at]", "a [at] ", " (dot) ", "[", "( ", "aа", "аa ", "пароль=", "пароль ",
    "密码=",    " at a dot ", " at a dot com", " dot ", "a@localhost ", "@localhost", "13812345678 ", "0041446681800 ",
    "00 41 44 66 ", "(11) 91234-", "8 (495) 123-45-", "8 ", "mot de passe ", "mot de ", "field: pw val: ",
    "header=a val",    "1.2.3.4-beta ", 'password="\\"', "password: |\n \n", "password: |\n a\n\n a",
    "<a " + "a" * 990 + ">", "<a " + "b=c " * 240 + ">", "<key>", "<cookies>", "<cookies>a=", "<sig>", "<token>true",
]  # fmt: skip


def repeated(unit: str, length: int) -> str:
    """A text of this many characters."""
    return (unit * (length // len(unit) + 1))[:length]


# So many parts; a name that comes again is known, so these do not.
VALUES: Final[Mapping[str, Callable[[int], Any]]] = {
    "names and words": lambda count: {f"k{number}": "v" for number in range(count)},
    "names and numbers": lambda count: {f"-{number}": number for number in range(count)},
    "names of keys": lambda count: {f"key{number}": "a1" for number in range(count)},
    "names of phones": lambda count: {f"phone{number}": "12" for number in range(count)},
    "names that are mailboxes": lambda count: {f"{number}@b.cd": 1 for number in range(count)},
    "words": lambda count: ["a"] * count,
    "signs": lambda count: ["a=:@"] * count,
    "passwords": lambda count: ["pw=x"] * count,
    "mailboxes": lambda count: ["a@b.cd"] * count,
    "addresses": lambda count: ["1.2.3.4"] * count,
    "schemes": lambda count: ["hawk a-b 1"] * count,
    "unseen characters": lambda count: ["a\u200bb"] * count,
    "other scripts": lambda count: ["４１１"] * count,
    "lists": lambda count: [[]] * count,
    "objects": lambda count: [{}] * count,
    "small numbers": lambda count: [7] * count,
    "numbers of 11 digits": lambda count: [10**10 + 48_203_917 * number % 10**10 for number in range(count)],
    "numbers of 13 digits": lambda count: [1_731_660_000_000 + 977 * number for number in range(count)],
    "numbers of cards": lambda count: [4111111111111111] * count,
    "numbers of nobody": lambda count: [4111111111111112] * count,
    "flags": lambda count: ["--pw"] * count,
    "flags that differ": lambda count: [f"--k{number}" for number in range(count)],
    "pairs that differ": lambda count: [[f"phone{number}", "1234"] for number in range(count)],
    "texts that differ": lambda count: [f"a-{number} b.c" for number in range(count)],
    "pairs": lambda count: [["a", 1]] * count,
    "pairs of names": lambda count: [["pw", "x"]] * count,
    "cookies": lambda count: [{"cookies": "a=b"}] * count,
    "whole decimals": lambda count: [7.0] * count,
    "spoken passwords": lambda count: ["passwd hunter2"] * count,
    "pairs by name": lambda count: [{"Key": "pw", "Value": "x"}] * count,
    "telephones": lambda count: ["13812345678"] * count,
    "signs in brackets": lambda count: ["a[.]b[at]c"] * count,
    "letters that look Latin": lambda count: ["pаssword x"] * count,
    "digits": lambda count: ["12345678901"] * count,
}
