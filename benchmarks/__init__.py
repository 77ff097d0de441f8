"""Benchmarks of logparity against what else people use, run with ``make bench``."""
