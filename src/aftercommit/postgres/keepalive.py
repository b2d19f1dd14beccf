"""Connection options that notice, within half a minute, when the other side has vanished."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict

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


def connection_options(dsn: str, **others: Any) -> dict[str, Any]:
    """The keepalive options and `others`, except those that the DSN sets itself."""
    given = conninfo_to_dict(dsn)
    return {name: value for name, value in {**_NOTICED, **others}.items() if name not in given}
