"""One metric a file: its formula, its unit, and what it is not."""
