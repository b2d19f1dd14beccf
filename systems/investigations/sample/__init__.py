"""Sample users and investigations, and the log lines written while `make up` runs."""
