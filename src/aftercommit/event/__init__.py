"""Event types, their payloads, and the envelope around them. No IO and no SQL."""
