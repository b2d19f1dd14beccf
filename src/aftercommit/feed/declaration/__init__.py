"""What a feed is: which events, in which order, under which cursor, with which filters, and how its pages look.

A declaration connects nothing and stays as it was made. All of it decides and nothing of it acts: what is declared is
read in `strands`, and counted there.
"""
