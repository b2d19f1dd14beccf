"""`python -m aftercommit.cli`, for when `aftercommit` is not on the PATH."""

from aftercommit.cli import main

main()
