"""verl on a CPU, through its own extension points: a platform, and a rollout engine made of a transformers model.

For tests only. ``VERL_USE_EXTERNAL_MODULES=cpu_host`` loads it in every process of a run.
"""

from cpu_host import engine, platform

__all__ = ["engine", "platform"]
