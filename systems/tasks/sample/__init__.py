"""Sample users, and the work they do while `make up` runs."""
