"""Readers who stay: open streams, and how what comes reaches all of them at the cost of few.

stream        one reader, from its cursor through history to what is live
streams       all of them: how many there may be, and the timer that looks after them
crowd         those who have everything and wait; they are written to in one go, with the bytes of `blocks`
endings       what is said last
"""
