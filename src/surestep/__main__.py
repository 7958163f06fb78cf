"""``python -m surestep``: the same as the ``surestep`` command."""

from surestep.cli.main import main

main(prog_name="surestep")
