"""Where events come from: a strand is what a feed shows for one key, as far as this process knows.

strand        head and ring of one strand; nothing is read there
tailer        reads the log once for all of them
history       what is older than a ring, by the statements of `queries` on a few `connections`
entries       makes of an event what leaves, once, and counts what cannot be made
holding       where a page has to end, because this process is too old for what comes next
time_slice    lets readers have their turn while much is read
hub           keeps the strands that somebody reads, and gives pages of them
"""
