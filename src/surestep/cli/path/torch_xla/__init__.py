"""Stands for torch_xla on the path of a process that `surestep run` started, and of its child processes: puts surestep's drop-in in its
place.
"""

from surestep.cli.finder import install

install()
