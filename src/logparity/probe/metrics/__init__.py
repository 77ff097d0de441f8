"""The metrics core: one pass over tokens, accumulators that merge exactly."""

from __future__ import annotations
