"""Systems that run on aftercommit. Each is a service as a team would write it, with its own tables and HTTP routes.

They import aftercommit; aftercommit imports none of them. `aftercommit up --app systems.site:application` runs them.
"""
