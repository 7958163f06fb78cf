"""The command line: run, doctor. Each command imports what it needs when it is called."""
