"""HTTP as it is spoken here: raw ASGI, the one error body, the origins that may read, and how a stream of events looks.

Has no feed in hand and imports none: whatever is served stands on it, also what has no feeds. That a page may see what
feeds say in headers is all that is here for them (`cors.EXPOSED`).
"""
