"""The database objects of an outbox: tables, migrations, partitions, retention, indexes, views."""
