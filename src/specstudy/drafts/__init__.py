"""Train, pack, unpack and check draft heads."""
