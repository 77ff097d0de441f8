"""The probe's store: one folder per run, one shard per rank, read back by `open_run`."""

from __future__ import annotations
