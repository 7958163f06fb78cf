"""Programs and devices: compile, cache, donate, run, transfer."""
