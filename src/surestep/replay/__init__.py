"""Replay: a compiled step that is proven to do the same again is run without its Python."""
