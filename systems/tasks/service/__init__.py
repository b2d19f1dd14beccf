"""Changes to tasks, users and link codes. Each change and its event are one transaction."""
