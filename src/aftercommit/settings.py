"""The settings of a process: command-line options first, then the environment. Opens and imports nothing."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from aftercommit.errors import DeclarationError

DATABASE_URL = "DATABASE_URL"
LISTEN_URL = "AFTERCOMMIT_LISTEN_URL"
APP = "AFTERCOMMIT_APP"
SCHEMA = "AFTERCOMMIT_SCHEMA"
LOG_FORMAT = "AFTERCOMMIT_LOG_FORMAT"

LogFormat = Literal["json", "text"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one process; None means not set.

    `dsn` is the address of PostgreSQL and `listen_dsn` one that bypasses a transaction pooler. `app` names an Outbox as
    `module:attribute`; `schema` names one by its schema, for commands that need no declarations.
    """

    dsn: str | None = None
    listen_dsn: str | None = None
    app: str | None = None
    schema: str | None = None
    log_format: LogFormat | None = None
    verbose: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the environment; an empty variable counts as not set."""
        variables = os.environ if environment is None else environment
        log_format = variables.get(LOG_FORMAT) or None
        if log_format not in (None, "json", "text"):
            raise DeclarationError(f"{LOG_FORMAT}={log_format!r:.40} is not a log format: use json or text")
        return cls(
            dsn=variables.get(DATABASE_URL) or None,
            listen_dsn=variables.get(LISTEN_URL) or None,
            app=variables.get(APP) or None,
            schema=variables.get(SCHEMA) or None,
            log_format=log_format,  # type: ignore[arg-type]
        )

    def told(self, **given: Any) -> Self:
        """The same settings with these values replaced; None leaves a value as it is."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})
