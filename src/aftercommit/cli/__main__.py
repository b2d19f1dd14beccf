"""`python -m aftercommit.cli`, where the program itself is not on the path."""

from aftercommit.cli import main

main()
