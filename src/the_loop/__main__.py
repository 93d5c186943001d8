"""`python -m the_loop` is the `the-loop` command."""

from the_loop.cli import main

main()
