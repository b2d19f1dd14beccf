"""Examples that run: what `aftercommit up` shows when no application of yours is given. Nobody else needs them."""
