"""What we promise, proved. A package, so that what belongs to all of it ends with it."""
