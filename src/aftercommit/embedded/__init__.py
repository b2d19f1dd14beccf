"""PostgreSQL from a wheel: started, attached to, stopped and recovered. For first steps and for tests."""

from aftercommit.embedded.server import EmbeddedPostgres, default_folder

__all__ = ["EmbeddedPostgres", "default_folder"]
