from __future__ import annotations

from hypothesis import settings

# The first call of an operation may take its time; how long says nothing about the law.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
