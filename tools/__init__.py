"""What keeps the repository honest. Run by make; never imported by the package."""
