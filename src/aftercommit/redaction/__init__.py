"""Removes secrets and personal data from values before they leave.

redactor      walks through values; withholds what it cannot check
folding       the normalised copy of a text that the rules search
rules         what is searched for; `key_value` (key=value), `prose` (sentences, command lines), `addresses`
prefilter     cheap tests that tell when a rule cannot find anything
numbers       cards, phones and ids; `national_ids` has the check digits; `secret_names` knows names of fields
patterns      helpers for patterns, and the limit on matches that are checked one by one
"""

from aftercommit.redaction.redactor import WITHHELD, Redactor

__all__ = ["WITHHELD", "Redactor"]
