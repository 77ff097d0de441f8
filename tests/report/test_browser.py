"""The report in a real browser: it draws, complains of nothing, and runs nothing from the data."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from logparity.report import write_report
from tests.support.run_folders import HOSTILE, make_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
REQUIRED = os.environ.get("LOGPARITY_REQUIRE_BROWSER") == "1"  # CI: a missing browser is a failure, not a skip
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None and not REQUIRED, reason="needs a Chromium on the PATH"),
]


def browse(page: Path, profile: Path, *arguments: str) -> tuple[str, str]:
    """Open a page without a window; returns what it printed and its log."""
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    more = "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr"
    flags = [*quiet.split(), *more.split(), "--virtual-time-budget=20000", f"--user-data-dir={profile}"]
    done = subprocess.run(
        [str(CHROMIUM), *flags, *arguments, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, done.stderr


def test_figures_are_drawn_without_complaint_and_hostile_text_shows_as_text(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "run", steps=3, texts=HOSTILE))
    dom, log = browse(page, tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" not in log, [line for line in log.splitlines() if "CONSOLE" in line]
    assert 'data-drawn="true"' in dom
    assert dom.count('class="main-svg"') >= 5
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
    assert "<script>alert" not in dom
    assert "onerror=alert" in dom.replace("&quot;", "")
    assert "<img" not in dom


@pytest.mark.parametrize("width", [1200, 500])
def test_the_screenshot_has_the_figures_in_it(width: int, tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "run", steps=3))
    shot = tmp_path / "shot.png"
    browse(page, tmp_path / "profile", f"--window-size={width},2400", f"--screenshot={shot}")
    image = Image.open(shot).convert("RGB")
    assert image.size == (width, 2400)
    colours = {colour for _, colour in image.getcolors(1 << 24)}
    assert (59, 125, 216) in colours, "the blue of the curves"
    assert (224, 123, 57) in colours, "the orange of the 99th percentile"
