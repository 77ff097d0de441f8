"""The plug-in that verl finds by itself: the entry point ``logparity`` of group ``verl.plugins``.

verl imports the module and calls nothing, so the work is done at import, in every process that imports verl: the
driver, the task runner, all Ray workers. At that moment verl's metrics function is not bound by name anywhere yet, so
wrapping it reaches the V1 trainer (which binds it on import) and the old one (which imports it on every step). verl
swallows what a plug-in raises; what goes wrong is said in the log here.

Off (``VERL_USE_EXTERNAL_PLUGINS=none``, or without ``+trainer.enable_token_level_prob_diff=True``) nothing is computed,
written, or said.
"""

from __future__ import annotations

import logging
import os

from logparity.integrations.verl_hook import MARK, VerlHook, logger

OPS_VARIABLE = "LOGPARITY_VERL_OPS"


def install() -> None:
    """Wrap verl's metrics function and its tracker, once per process."""
    from verl.utils.debug import metrics
    from verl.utils.tracking import Tracking

    if hasattr(metrics.calculate_debug_metrics, MARK):
        return
    hook = VerlHook()
    metrics.calculate_debug_metrics = hook.around_metrics(metrics.calculate_debug_metrics)
    Tracking.__init__ = hook.around_tracking(Tracking.__init__)
    if os.environ.get(OPS_VARIABLE, "").strip().lower() in ("1", "true"):
        from logparity.integrations.verl import use_token_log_probs

        logger.info("logparity: log-probs and entropy by logparity in %s.", ", ".join(use_token_log_probs().names))


logger.setLevel(
    logging.INFO
)  # verl sets the root to WARNING; what is said here is said once, by whoever switched it on
try:
    install()
except Exception as error:  # verl would swallow it, and a user wait for metrics that never come
    logger.warning("logparity: plug-in not installed (%s: %s); verl goes on without.", type(error).__name__, error)

__all__ = ["OPS_VARIABLE", "install"]
