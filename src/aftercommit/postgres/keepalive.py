"""How a connection to PostgreSQL notices that the other side is gone without a word: options that all of ours have."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

# Within half a minute.
_NOTICED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "connect_timeout": 10,
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
)


def options_for(dsn: str, **others: Any) -> dict[str, Any]:
    """These and the `others`, except for what the DSN says itself."""
    given = conninfo_to_dict(dsn)
    return {name: value for name, value in {**_NOTICED, **others}.items() if name not in given}
