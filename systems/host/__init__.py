"""What all systems share: the site that puts them behind one address, and what their routes have in common.

It imports no system. `systems/site.py` lists those that run together.
"""
