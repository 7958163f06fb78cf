"""The version that scripts check: the last torch_xla whose API this is, and by whom."""

__version__ = "2.9.0+surestep"
__torch_xla_gitrev__ = "surestep"
