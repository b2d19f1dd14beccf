"""The system's own routes over HTTP. Reading logs is the feed's work."""
