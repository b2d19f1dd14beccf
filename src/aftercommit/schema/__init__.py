"""What is in the database: tables, migrations, partitions, retention, indexes, views."""
