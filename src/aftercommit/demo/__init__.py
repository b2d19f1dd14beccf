"""The example that `aftercommit up` runs if you give no application."""
