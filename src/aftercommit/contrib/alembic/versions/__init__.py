"""The revisions of the branch `aftercommit`, one for each numbered migration. Alembic reads them as files."""
