"""The system's own routes over HTTP. Reading events is the feed's work."""
