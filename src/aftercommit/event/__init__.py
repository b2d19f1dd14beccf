"""What happened: event types, their payloads, the envelope around them. No IO, no SQL, no listeners."""
