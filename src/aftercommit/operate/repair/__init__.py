"""Repair: show, retry, edit and discard dead letters, replay events, and move checkpoints.

Repair does not call handlers. It makes a dead letter due, or puts an event back into the outbox, and running workers
and relays do the rest. `seek` moves a consumer's checkpoint.
"""
