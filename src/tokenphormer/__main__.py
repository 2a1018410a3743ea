"""`python -m tokenphormer` is the command `tokenphormer`."""

from tokenphormer.cli import main

main()
