"""The system's own HTTP routes. The feed serves the events."""
