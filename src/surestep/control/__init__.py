"""Functions recorded as traces of their own, and the loops, branches and calls over them that are one operation of the trace around."""
