"""See how it stands, and set it right. The command line and the console both work with this."""
