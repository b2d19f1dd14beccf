"""Where a feed's events come from: a strand has the events of one feed for one key, as far as this process knows.

hub           serves the feeds of a process: strands, and pages of them
page_reader   reads a page from the ring or from history
strand        one strand as far as it is known, without I/O; its newest entries are in its `ring`
found         what a search in a ring or in the database found
kept_strands  the strands in memory: loads, feeds and drops them
tailer        reads the log once for all strands
history       reads what is older than a ring, with the statements of `queries` on a few `connections`
entry_maker   turns an event into the item that leaves over HTTP
time_slice    interrupts long work, so that readers are served meanwhile
"""
