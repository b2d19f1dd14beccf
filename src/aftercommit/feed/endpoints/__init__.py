"""The HTTP endpoints of a feed. `gate` admits a reader, `query` parses the request.

`polling` sends a page from `page_cache`, a 304 (`etag`), or waits for new events; `streaming` opens a stream. Both are
an `endpoint`, and `refusals` turns their exceptions into HTTP errors.
"""
