"""The conformance page is what the code says."""

from __future__ import annotations

from pathlib import Path

from logparity import losses
from logparity.losses.conformance import entries, render
from logparity.losses.host_notes import HOSTS, NOTES
from tests.losses.golden_batch import golden

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m logparity.losses.conformance docs/losses.md"


def test_every_public_loss_and_config_is_on_the_page() -> None:
    page = render()
    wanted = [name for name in losses.__all__ if name.endswith(("_loss", "Config", "_advantages")) or name == "gae"]
    assert [name for name in wanted if f"`{name}`" not in page] == ["SurrogateConfig"]  # a union of configs


def test_notes_name_known_entries_and_frameworks() -> None:
    assert set(NOTES) == {entry.key for entry in entries()}
    assert {host for notes in NOTES.values() for host in notes} <= {host.name for host in HOSTS}


def test_the_recorded_versions_are_those_on_the_page() -> None:
    versions = {host.name: host.version for host in HOSTS}
    recorded = golden()["versions"]
    assert (versions["verl"], versions["TRL"]) == (recorded["verl"], recorded["trl"])
