"""Takes secrets and personal data out of what is about to leave.

redactor      the whole: walking through values, withholding when in doubt
folding       the copy of a text that is searched, without disguises
rules         what is looked for; `key_value` (key=value), `prose` (sentences, command lines), `addresses`
prefilter     cheap tests that say when a rule has nothing to find
numbers       cards, phones and ids; `national_ids` checks them; `secret_names` knows what names mean
patterns      how much of one text may be judged
"""

from aftercommit.redaction.redactor import WITHHELD, Redactor

__all__ = ["WITHHELD", "Redactor"]
