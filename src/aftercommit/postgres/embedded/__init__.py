"""PostgreSQL from a wheel: started, attached to, stopped and recovered as a child of nobody. For first steps and tests."""

from aftercommit.postgres.embedded.server import EmbeddedPostgres, default_folder

__all__ = ["EmbeddedPostgres", "default_folder"]
