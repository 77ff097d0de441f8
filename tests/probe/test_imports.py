"""The probe and the report need no torch."""

from __future__ import annotations

import subprocess
import sys


def test_probe_and_report_import_without_torch_and_transformers() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['matplotlib'] = None\n"
        "import logparity.probe, logparity.report, logparity.report.analysis_plot"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)
