"""One migration of Django's for each numbered migration of ours."""
