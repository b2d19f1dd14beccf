"""National ids: their shapes and check digits. Pure.

A shape alone is often just a number, so an id without a check digit counts only where its shape is unmistakable.
Decision 0022 says why this is not python-stdnum.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import mul
from typing import Final

from aftercommit.redaction.patterns import by_first_letter

Check = Callable[[str], bool]


def _digits(rows: str) -> list[list[int]]:
    return [[int(digit) for digit in row] for row in rows.split()]


_SPAIN = "TRWAGMYFPDXBNJZSQVHLCKE"
_FINLAND = "0123456789ABCDEFHJKLMNPRSTUVWXY"
# What comes of a product and the next digit.
_GERMANY = [{str(digit): ((digit + product) % 10 or 10) * 2 % 11 for digit in range(10)} for product in range(11)]
_CHINA = "10X98765432"
_CHINA_WEIGHTS = tuple(2**place % 11 for place in range(17, 0, -1))
_SINGAPORE: Final[Mapping[str, str]] = {"S": "JZIHGFEDCBA", "T": "GFEDCBAJZIH", "F": "XWUTRQPNMLK", "G": "RQPNMLKXWUT"}
# At odd places the letters from A on count as these numbers; digits count like the first ten letters.
_ITALY_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
# Countries, each group followed by the length of its account numbers.
_IBAN_LENGTHS: Final = (
    "NO 15 BE 16 DK FI FK FO GL NL 18 MK SI 19 AT BA EE KZ LT LU MN XK 20 CH HR LI LV 21 BG BH CR DE GB GE IE ME RS VA "
    "22 AE GI IL IQ OM SO TL 23 AD CZ ES MD PK RO SA SE SK TN VG 24 LY PT ST 25 IS TR 26 BI DJ FR GR IT MC MR SM 27 "
    "AL AZ BY CY DO GT HU LB NI PL SV 28 BR EG PS QA UA 29 JO KW MU YE 30 MT SC 31 LC 32 RU 33"
)
# A is 10, Z is 35.
_AS_NUMBERS = {ord(" "): "", **{65 + place: str(10 + place) for place in range(26)}}
# Twice the digit, and its two digits added up.
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")
_VALUES = bytes.maketrans(b"0123456789", bytes(range(10)))
# As they are written: comparing text is quicker than reading it as a number.
_DAYS: Final = frozenset(f"{day:02}" for day in range(1, 32))
_MONTHS: Final = frozenset(f"{month:02}" for month in range(1, 13))
# The month of Poland tells the century, the day of Norway those without a number of their own, of Sweden likewise.
_POLISH_MONTHS: Final = frozenset(f"{century + month:02}" for century in range(0, 100, 20) for month in range(1, 13))
_NORWEGIAN_DAYS: Final = _DAYS | {f"{40 + day:02}" for day in range(1, 32)}
_NORWEGIAN_MONTHS: Final = _MONTHS | {f"{40 + month:02}" for month in range(1, 13)}
_SWEDISH_DAYS: Final = _DAYS | {f"{60 + day:02}" for day in range(1, 32)}
_VERHOEFF_TIMES = _digits(
    "0123456789 1234067895 2340178956 3401289567 4012395678 5987604321 6598710432 7659821043 8765932104 9876543210"
)
_VERHOEFF_TURN = _digits("0123456789 1576283094 5803796142 8916043527 9453126870 4286573901 2793806415 7046913258")


def luhn(digits: str) -> bool:
    """The sum of payment cards and of several states: every second digit, from the right, counts twice."""
    numbers = digits.encode()
    return (sum(numbers[-1::-2]) + sum(numbers[-2::-2].translate(_DOUBLED)) - 48 * len(numbers)) % 10 == 0


def us_social_security(digits: str) -> bool:
    """United States: no check digit, but areas, groups and numbers that were never given. ITINs begin with 9."""
    return digits[:3] not in ("000", "666") and digits[3:5] != "00" and digits[5:] != "0000"


def britain(text: str) -> bool:
    """National insurance number: no check digit, and prefixes that are not used."""
    return text[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def india_aadhaar(digits: str) -> bool:
    """Aadhaar, by Verhoeff's scheme."""
    state = 0
    for place, digit in enumerate(reversed(digits)):
        state = _VERHOEFF_TIMES[state][_VERHOEFF_TURN[place % 8][int(digit)]]
    return digits[0] not in "01" and state == 0


def spain(text: str) -> bool:
    """DNI and NIE: the letter follows from the number."""
    number = text[:-1].translate(str.maketrans("XYZ", "012"))
    return _SPAIN[int(number) % 23] == text[-1]


def italy(text: str) -> bool:
    """Codice fiscale: the last letter follows from the others."""
    numbers = [int(character) if character.isdigit() else ord(character) - 65 for character in text[:15]]
    total = sum(_ITALY_ODD[number] for number in numbers[::2]) + sum(numbers[1::2])
    return chr(65 + total % 26) == text[15]


def france(digits: str) -> bool:
    """NIR: two digits that make the whole a multiple of 97."""
    return digits[0] in "12" and 1 <= int(digits[3:5]) <= 99 and 97 - int(digits[:13]) % 97 == int(digits[13:])


def germany(digits: str) -> bool:
    """Tax id: of the first ten digits one occurs two or three times, the others once at most; then ISO 7064."""
    first = digits[:10]
    different = len(set(first))
    if not 8 <= different <= 9 or digits[0] == "0":
        return False
    # Nine different ones: one of them twice. Eight: one of them three times, or two twice.
    if different == 8 and max(map(first.count, set(first))) != 3:
        return False
    product = 10
    for digit in first:
        product = _GERMANY[product][digit]
    return (11 - product) % 10 == int(digits[10])


def poland(digits: str) -> bool:
    """PESEL: a date of birth whose month tells the century, and a weighted sum."""
    born = digits[4:6] in _DAYS and digits[2:4] in _POLISH_MONTHS
    return born and -_weighted(digits[:10], (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10 == int(digits[10])


def norway(digits: str) -> bool:
    """Fødselsnummer: two check digits; those of people without one have 40 added to the day."""
    if digits[2:4] not in _NORWEGIAN_MONTHS or digits[:2] not in _NORWEGIAN_DAYS:
        return False
    if -_weighted(digits[:9], (3, 7, 6, 1, 8, 9, 4, 5, 2)) % 11 != int(digits[9]):
        return False
    return -_weighted(digits[:10], (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11 == int(digits[10])


def sweden(digits: str) -> bool:
    """Personnummer without its century: a date of birth and Luhn."""
    return digits[4:6] in _SWEDISH_DAYS and digits[2:4] in _MONTHS and luhn(digits)


def denmark(digits: str) -> bool:
    """CPR: a date of birth; its check digit is not kept to any more."""
    return digits[:2] in _DAYS and digits[2:4] in _MONTHS


def finland(text: str) -> bool:
    """Henkilötunnus: a date of birth and a check character."""
    digits = text[:6] + text[7:10]
    return text[:2] in _DAYS and text[2:4] in _MONTHS and _FINLAND[int(digits) % 31] == text[10]


def belgium(digits: str) -> bool:
    """National number: 97 less the rest; for those born from 2000 on with a 2 in front."""
    born, rest = int(digits[:9]), 97 - int(digits[9:])
    return born % 97 == rest or (2_000_000_000 + born) % 97 == rest


def brazil(digits: str) -> bool:
    """CPF: two check digits; eleven times the same digit is none."""
    # Written out: this is asked of every number of eleven digits.
    a, b, c, d, e, f, g, h, i, first, second = digits.encode().translate(_VALUES)
    if (10 * a + 9 * b + 8 * c + 7 * d + 6 * e + 5 * f + 4 * g + 3 * h + 2 * i) * 10 % 11 % 10 != first:
        return False
    weighted = _weighted(digits, (11, 10, 9, 8, 7, 6, 5, 4, 3, 2))
    return weighted * 10 % 11 % 10 == second and len(set(digits)) > 1


def turkey(digits: str) -> bool:
    """Kimlik number: two check digits."""
    numbers = digits.encode()
    if sum(numbers[:10]) % 10 != numbers[10] - 48 or digits[0] == "0":
        return False
    return (7 * (sum(numbers[:9:2]) - 240) - (sum(numbers[1:8:2]) - 192)) % 10 == int(digits[9])


def china(text: str) -> bool:
    """Resident id: a date of birth and a check character."""
    plausible = text[6:8] in ("19", "20") and text[12:14] in _DAYS and text[10:12] in _MONTHS
    return plausible and _CHINA[_weighted(text[:17], _CHINA_WEIGHTS) % 11] == text[17]


def korea(digits: str) -> bool:
    """Resident registration number: a date of birth, and a digit for century and sex."""
    return digits[6] in "12345678" and digits[4:6] in _DAYS and digits[2:4] in _MONTHS


def singapore(text: str) -> bool:
    """NRIC and FIN: the letter follows from the number."""
    return _SINGAPORE[text[0]][_weighted(text[1:8], (2, 7, 6, 5, 4, 3, 2)) % 11] == text[8]


def south_africa(digits: str) -> bool:
    """A date of birth, citizenship, an 8 or 9, and Luhn."""
    plausible = digits[10] in "012" and digits[11] in "89"
    return plausible and digits[4:6] in _DAYS and digits[2:4] in _MONTHS and luhn(digits)


def switzerland(digits: str) -> bool:
    """AHV number: begins with the number of the country, and ends like the number of an article."""
    return digits[:3] == "756" and _weighted(digits, (1, 3) * 6 + (1,)) % 10 == 0


def australia(digits: str) -> bool:
    """Tax file number: a weighted sum that 11 divides."""
    return _weighted(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0


def iban(text: str) -> bool:
    """Not of a person but of an account, which is as good: ISO 7064 over letters as numbers."""
    return int((text[4:] + text[:4]).translate(_AS_NUMBERS)) % 97 == 1


# Digits without anything between them are most often something else: only what has two check digits, or one and a date
# or a structure, is looked for.
BY_LENGTH: Final[Mapping[int, Sequence[Check]]] = {
    11: (germany, poland, norway, brazil, turkey),
    13: (south_africa, switzerland),
    15: (france,),
    18: (china,),
}
# Groups of digits with a line, a dot or a space between, by how the first group ends; the check is asked with the
# digits alone.
GROUPED: Final[Sequence[tuple[str, str, Check]]] = (
    (r"\d{3}[ -]", r"\d{3}(?:-\d{2}-| \d{2} )\d{4}", us_social_security),
    # Canada, whose check digit is Luhn's, and Australia.
    (r"\d{3}[ -]", r"\d{3}(?:-\d{3}-| \d{3} )\d{3}(?![ -]?\d)", lambda digits: luhn(digits) or australia(digits)),
    (r"\d{3}\.", r"\d{3}\.\d{3}\.\d{3}-\d{2}", brazil),
    (r"\d{3}\.", r"756\.\d{4}\.\d{4}\.\d{2}", switzerland),
    (r"\d{4}[ .-]", r"[2-9]\d{3}(?:-\d{4}-| \d{4} )\d{4}(?![ -]?\d)", india_aadhaar),
    (r"\d{6}[+-]", r"\d{6}-[1-8]\d{6}", korea),
    (r"\d{6}[+-]", r"\d{6}[-+]\d{4}", lambda digits: sweden(digits) or denmark(digits)),
    (r"\d{2}\.", r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", belgium),
    (r"\d{2} ", r"\d{2} \d{3} \d{3} \d{3}(?! ?\d)", germany),
    (r"\d ", r"[12] \d{2} \d{2} \d{2} \d{3} \d{3} \d{2}", france),
)


def _iban_shapes() -> Iterator[str]:
    countries: list[str] = []
    for word in _IBAN_LENGTHS.split():
        if word.isalpha():
            countries.append(word)
            continue
        fours, rest = divmod(int(word) - 4, 4)
        ending = f" ?[A-Z0-9]{{{rest}}}" if rest else ""
        yield from (rf"{country}\d{{2}}(?: ?[A-Z0-9]{{4}}){{{fours}}}{ending}" for country in countries)
        countries.clear()


# With letters, which are written large; by how they begin.
LETTERED: Final[Sequence[tuple[str, str, Check]]] = (
    (r"[A-Z]{2} ?\d", r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]", britain),
    (r"[XYZ\d]\d{7}", r"(?:\d{8}|[XYZ]\d{7})[A-Z]", spain),
    ("[A-Z]{6}", r"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]", italy),
    (r"\d{6}[-+A]", r"\d{6}[-+A]\d{3}[0-9A-FHJ-NPR-Y]", finland),
    (r"\d{17}", r"\d{17}X", china),
    (r"[STFG]\d{7}", r"[STFG]\d{7}[A-Z]", singapore),
    (r"[A-Z]{2}\d{2}[ A-Z0-9]", f"(?:{by_first_letter(_iban_shapes())})", iban),
)


def _weighted(digits: str, weights: Sequence[int]) -> int:
    """The weighted sum of as many digits as there are weights."""
    # Every long number comes here, so digits become numbers in the quickest way.
    return sum(map(mul, digits.encode().translate(_VALUES), weights))
