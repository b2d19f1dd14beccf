"""The ground: tables, migrations and every SQL statement. Knows nothing of transports, handlers or HTTP."""
