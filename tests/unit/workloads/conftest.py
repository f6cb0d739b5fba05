from __future__ import annotations

from hypothesis import settings

# A busy machine must not fail a test that is right, and a run must be the same as the one before.
settings.register_profile("specstudy", deadline=None, derandomize=True, database=None)
settings.load_profile("specstudy")
