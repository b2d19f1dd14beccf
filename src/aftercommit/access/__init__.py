"""Who may ask, for what, and how often.

reader        a reader with permissions, and the question that every way out asks (`Access`)
permissions   what a permission covers
bearer        an `Access` by bearer tokens: `tokens` (JWTs, checked by `token_keys`), `service_tokens`, `revocation`
trusted       an `Access` by what a trusted program says of its users
rate_limit    how often, counted across all processes

Here are the names that an access of your own is written with; everything else is imported from where it is.
"""

from aftercommit.access.permissions import Permissions, needed
from aftercommit.access.reader import Access, Reader, Varying, Watched, rights_of

__all__ = ["Access", "Permissions", "Reader", "Varying", "Watched", "needed", "rights_of"]
