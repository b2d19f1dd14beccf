"""What can be done with investigations and their logs: each change and its event in one transaction."""
