"""Authentication, permissions and rate limits.

reader        a reader with permissions, and `Access`, the protocol that authenticates requests
permissions   what a permission covers
bearer        an `Access` for bearer tokens: `tokens` (JWTs, checked by `token_keys`), `service_tokens`, `revocation`
trusted       an `Access` for programs that act on behalf of users
rate_limiter  rate limits that all processes share; `key_count` counts the requests of one key

Bearer tokens need `aftercommit[serve]`.
"""

from typing import TYPE_CHECKING

from aftercommit.access.key_count import Allowance, Rate
from aftercommit.access.permissions import Permissions, permission_for
from aftercommit.access.rate_limiter import RateLimiter
from aftercommit.access.reader import Access, Reader, RemembersReaders, Varying, Watched, rights_of
from aftercommit.lazy import lazy

if TYPE_CHECKING:
    from aftercommit.access.bearer import BearerAccess
    from aftercommit.access.token_keys import TOKEN_KEYS_FILE_VARIABLE, TOKEN_KEYS_VARIABLE, TokenKeys
    from aftercommit.access.tokens import TokenVerifier, mint
    from aftercommit.access.trusted import TrustedUsers, is_local, is_program
else:
    __getattr__ = lazy(
        __name__,
        {
            "aftercommit.access.bearer": ("BearerAccess",),
            "aftercommit.access.token_keys": ("TOKEN_KEYS_VARIABLE", "TOKEN_KEYS_FILE_VARIABLE", "TokenKeys"),
            "aftercommit.access.tokens": ("TokenVerifier", "mint"),
            "aftercommit.access.trusted": ("TrustedUsers", "is_local", "is_program"),
        },
    )

__all__ = [
    "TOKEN_KEYS_FILE_VARIABLE",
    "TOKEN_KEYS_VARIABLE",
    "Access",
    "Allowance",
    "BearerAccess",
    "Permissions",
    "Rate",
    "RateLimiter",
    "Reader",
    "RemembersReaders",
    "TokenKeys",
    "TokenVerifier",
    "TrustedUsers",
    "Varying",
    "Watched",
    "is_local",
    "is_program",
    "mint",
    "permission_for",
    "rights_of",
]
