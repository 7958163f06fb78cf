"""Rewrites scripts from torch_xla's old names to its modern ones, or to surestep's own."""

from surestep.lint.migrate.run import Migrated, migrate

__all__ = ["Migrated", "migrate"]
