"""What your tests may use too: a PostgreSQL to test against. Never imported by production code."""
