"""A probe whose every call fails: ``VERL_USE_EXTERNAL_MODULES=cpu_host,broken_probe`` loads it in every process."""

from logparity.probe.monitor import Probe


def observe(*_, **__):
    """Fail."""
    return 1 / 0


Probe.observe = observe
