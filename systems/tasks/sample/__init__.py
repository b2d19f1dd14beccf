"""Sample people, and what they do while `make up` runs."""
