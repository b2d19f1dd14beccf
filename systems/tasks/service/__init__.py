"""What can be done with tasks, people and link codes: each change and its event in one transaction."""
