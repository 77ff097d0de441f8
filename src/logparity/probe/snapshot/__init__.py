"""Copies of what a trainer holds, in one layout."""

from __future__ import annotations
