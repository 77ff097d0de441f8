"""One self-contained HTML page from a run folder."""

from __future__ import annotations

from logparity.report.page import write_report

__all__ = ["write_report"]
