"""aftercommit as a Django app: its migrations make the tables, `manage.py aftercommit` is the command line.

    INSTALLED_APPS = [..., "aftercommit.contrib.django"]
    AFTERCOMMIT_OUTBOXES = ["shop.events.outbox"]

Nothing is imported here: Django finds the app's parts by their names.
"""
