"""The pages in a real browser. A package, so that what is shared here ends with the last test of the folder."""
