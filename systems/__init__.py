"""The systems that run on aftercommit: each is a service as a team would write it, with its own tables and HTTP routes.

They import aftercommit and never the other way round: `aftercommit up --app systems.site:application` finds them.
"""
