"""An embedded PostgreSQL whose programs come from a wheel, for first steps and for tests."""

from aftercommit.embedded.cluster import binaries
from aftercommit.embedded.server import EmbeddedPostgres, default_folder

__all__ = ["EmbeddedPostgres", "binaries", "default_folder"]
