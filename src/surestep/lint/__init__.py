"""What goes wrong in XLA training scripts, found and rewritten from their source. Nothing here imports torch or jax.

`source` reads files and notebooks; `evaluate` runs a file on tags in place of values, and leaves a `program`: the calls, with what they
are called on and where; each rule in `rules/` asks the program; `engine` puts the findings together; `output/` prints them; `migrate/`
rewrites old names.
"""
