"""Code that all systems share: the site that serves them at one address, and the base of their routes.

It imports no system. `systems/site.py` lists the systems that run together.
"""
