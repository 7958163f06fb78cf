"""What each ATen operation means in JAX: one file a family, each ending in a plain table of its lowerings."""
