"""The Telegram bot: its pure parts, its state, and the whole of it against a local Bot API server and real backends."""
