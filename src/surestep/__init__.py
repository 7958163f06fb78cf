"""surestep: train PyTorch models on XLA, from plain loops. Importing it gives PyTorch an `xla` device."""

from surestep.loop.boundaries import step as step
from surestep.loop.boundaries import sync as sync
from surestep.tensor.process import register as _register

_register()
