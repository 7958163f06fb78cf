"""More than one device: processes that are started and find each other, and what they do together."""
