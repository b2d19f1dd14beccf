"""Integrations, each with its own extra: Django, Alembic, Prometheus, Telegram."""
