"""Fuzz the readers under coverage guidance: ``python -m tests.fuzz.fuzz_readers [SECONDS] [TARGET ..]``.

One process a target, so that one that ends its process is told from the others. What fails is left in ``runs/fuzz``;
after the fix it goes into ``tests/fuzz/findings/TARGET/``, where the test suite reads it from then on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["logparity"]):
    from tests.fuzz.targets import TARGETS, seeds

ROOT = Path("runs/fuzz")
ONE = "--one"


def fuzz(target: str, arguments: list[str]) -> None:
    """Fuzz one target in this process; never returns."""
    atheris.Setup([sys.argv[0], *arguments], TARGETS[target])
    atheris.Fuzz()


def campaign(target: str, seconds: int) -> tuple[int, list[str]]:
    """Fuzz one target in a process of its own; how many inputs were tried, and the files that fail."""
    corpus, failed = ROOT / "corpus" / target, ROOT / "failed" / target
    for place in (corpus, failed):
        place.mkdir(parents=True, exist_ok=True)
    for index, content in enumerate(seeds(target)):
        (corpus / f"seed{index}").write_bytes(content)
    limits = [
        f"-max_total_time={seconds}",
        "-timeout=25",
        "-rss_limit_mb=4096",
        "-max_len=65536",
        "-print_final_stats=1",
    ]
    command = [sys.executable, "-m", "tests.fuzz.fuzz_readers", ONE, target, *limits]
    before = set(failed.iterdir())
    done = subprocess.run(
        [*command, f"-max_total_time={seconds}", f"-artifact_prefix={failed}/", str(corpus)],
        capture_output=True,
        text=True,
        errors="replace",
    )
    (ROOT / f"{target}.log").write_text(done.stdout + done.stderr)
    counts = re.findall(r"number_of_executed_units: (\d+)", done.stderr) or re.findall(r"^#(\d+)", done.stderr, re.M)
    found = sorted(str(path) for path in set(failed.iterdir()) - before)
    if done.returncode and not found:
        found = [f"{ROOT / target}.log: exit status {done.returncode}"]
    return int(counts[-1]) if counts else 0, found


def main() -> int:
    """Run a campaign over some targets; 1 where one fails."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    failures = total = 0
    for target in sys.argv[2:] or TARGETS:
        tried, found = campaign(target, seconds)
        sys.stdout.write(f"{target:16} {tried:>10,} inputs, {len(found)} failures {' '.join(found)}\n")
        sys.stdout.flush()
        total, failures = total + tried, failures + len(found)
    sys.stdout.write(f"{'all':16} {total:>10,} inputs, {failures} failures\n")
    return int(failures > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE]:
        fuzz(sys.argv[2], sys.argv[3:])
    sys.exit(main())
