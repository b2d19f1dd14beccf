"""The addresses of a feed: who comes in (`gate`), what is asked for (`query`), and the answer.

`endpoint` is what the two kinds of addresses share: `polling` answers with a page, with a 304 (`etag`) or after a wait,
from `page_cache`; `streaming` opens a stream. `refusals` are the answers to what cannot be read as it was asked for.
"""
