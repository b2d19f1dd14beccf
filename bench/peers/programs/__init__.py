"""What runs in the peers' own environment: a small program per peer, asked and answered in lines of JSON.

Nothing here imports our library: these programs run where it is not installed.
"""
