"""A soak: hours of events at a constant rate, and whether memory, WAL and tables stay flat."""
