"""Changes to investigations and their logs. Each change and its event are one transaction."""
