"""The report as a file: complete, self-contained, honest about what is missing, and inert."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logparity.errors import InputError, RunFolderError
from logparity.report import write_report
from logparity.report.embed import json_for_script
from logparity.report.visible_text import visible
from tests.support.run_folders import HOSTILE, make_run


class Page(HTMLParser):
    """Elements, attributes, and text of a page as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = str(dict(attrs).get("id")) if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text.append(data)
        else:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._script = None


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_a_whole_run_gives_every_figure_and_number(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    assert set(json.loads(page.scripts["figures"])) == {"reward", "mismatch", "agreement", "position", "map"}
    text = " ".join(page.text)
    diff, mask = (np.load(tmp_path / "run" / "prob_diff" / f"prob_{n}_step_1.npy") for n in ("diff", "mask"))
    for number in (diff[mask].mean(dtype=np.float64), diff[mask].max(), np.percentile(diff[mask].astype(float), 99)):
        assert f"{number:.4g}" in text
    assert f"{3 * mask.sum():,}" in text
    assert "Missing or left out" not in text
    row, position = np.unravel_index(np.argmax(diff), diff.shape)
    worst = re.search(
        r'<mark>[^<]*</mark>.*?<td class="n strong">([\d.]+)</td>.*?</tr>',
        (tmp_path / "run" / "report.html").read_text(),
    )
    assert worst is not None
    assert float(worst[1]) == pytest.approx(diff[row, position], abs=1e-4)
    assert f'<td class="n">{position}</td><td class="key"><bdi>r{row}</bdi>' in worst[0]


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    page = page_of(run)
    loading = [(tag, name) for tag, attrs in page.tags for name in attrs if name in ("src", "href", "srcset", "action")]
    assert loading == []
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert (run / "report.html").stat().st_size < 3_000_000


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "<script>run</script>", steps=1, texts=HOSTILE))
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert not any(tag == "img" or name.startswith("on") for tag, attrs in page.tags for name in attrs)
    text = "".join(page.text)
    for shown in (
        "<script>alert(1)</script>",
        "</script><img src=x onerror=alert(2)>",
        "{{ 7 * 7 }}",
        "·[31m",
        "a <b>model</b>",
    ):
        assert shown in text
    assert not {"\x1b", "\u202e", "\u2028"} & set("".join(page.text))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_embedded_json_means_the_same_and_cannot_leave_its_script(value: object) -> None:
    text = str(json_for_script(value))
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)


@given(st.text())
def test_visible_text_is_printable_and_never_changes_ordinary_words(text: str) -> None:
    shown = visible(text)
    assert not any(c in shown for c in "\x00\x1b\n\r\t\u2028\u2029\u202a\u202e\u2066\u200b\ufeff")
    assert visible("ordinary words, 漢字, ß") == "ordinary words, 漢字, ß"


@pytest.mark.parametrize("part", ["metrics.jsonl", "config.json", "prob_diff", "rollouts"])
def test_each_part_may_be_missing_and_is_named(part: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    (run / part).rename(tmp_path / "gone")
    text = " ".join(page_of(run).text)
    assert "Missing or left out" in text
    assert part in text
    if part == "prob_diff":
        assert "No data for this figure" in text


def test_damage_is_counted_not_hidden(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "reward/mean": NaN}\n{"step": 4, "rew')
    diff = np.load(run / "prob_diff" / "prob_diff_step_2.npy")
    diff[0, 0] = np.nan
    np.save(run / "prob_diff" / "prob_diff_step_2.npy", diff)
    (run / "rollouts" / "step_000002.parquet").write_bytes(b"no parquet")
    page = page_of(run)
    text = " ".join(page.text)
    for words in ("1 lines could not be read", "1 values are NaN", "1 valid tokens are NaN", "step_000002.parquet"):
        assert words in text
    assert "NaN" not in page.scripts["figures"]


def test_a_repeated_step_counts_once_with_its_later_values(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "reward/mean": 0.75}\n')
    reward = json.loads(page_of(run).scripts["figures"])["reward"]["data"][0]
    assert (reward["x"], reward["y"]) == ([1], [0.75])


def test_many_tokens_are_drawn_as_density_few_as_points(tmp_path: Path) -> None:
    few = json.loads(page_of(make_run(tmp_path / "few", steps=1)).scripts["figures"])["agreement"]["data"]
    many = json.loads(page_of(make_run(tmp_path / "many", steps=3)).scripts["figures"])["agreement"]["data"]
    assert [trace["type"] for trace in few] == ["scatter", "scatter"]
    assert [trace["type"] for trace in many] == ["scatter", "heatmap"]


def test_an_unwritable_place_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=1)
    with pytest.raises(RunFolderError, match="no/report"):
        write_report(run, tmp_path / "no" / "report.html")
    with pytest.raises(InputError, match="got a file"):
        write_report(run / "config.json")
