"""Sample users and investigations, and log lines that arrive while `make up` runs."""
