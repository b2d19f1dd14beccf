"""Open streams, and how one event reaches all of their readers at the cost of few.

stream        one reader, from its cursor through history to live events, over its `response`
streams       all of them: how many may be open, and the timer that looks after them
crowd         the readers that wait at the head; they are written to in one go, with the bytes of `blocks`
endings       the events with which a stream ends or waits
"""
