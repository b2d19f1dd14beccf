"""Our parts beside raw-SQL floors and beside peers, side by side in one run: `python -m bench`, or `make bench`."""
