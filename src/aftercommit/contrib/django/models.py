"""No models: our statements make the tables. But Django tells only apps with this module that it has migrated."""
