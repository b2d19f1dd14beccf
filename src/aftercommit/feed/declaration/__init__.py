"""The declaration of a feed: which events, in which order, with which cursors and filters, and the form of its pages.

Connects to nothing, and does not change after it was made. `strands` reads the events of a feed.
"""
