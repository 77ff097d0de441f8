"""The tests of a host are collected where that host is installed: `make test-verl`, `make test-trl`."""

from importlib.util import find_spec

collect_ignore = [name for name in ("verl", "trl") if find_spec(name) is None]
