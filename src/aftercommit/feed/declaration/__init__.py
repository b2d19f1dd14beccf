"""The declaration of a feed: which events, in which order, with which cursors and filters, and the form of its pages.

Pure: nothing here connects to anything or changes after it was made. `strands` reads the events of a feed.
"""
