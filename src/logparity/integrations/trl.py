"""TRL: a `GRPOTrainer` that compares what its engine sampled with what it scores, and TRL's log-prob functions.

::

    trainer = with_probe(GRPOTrainer, save_dir="runs/x/prob_diff")(model=.., reward_funcs=.., args=.., ..)

Nothing is computed twice: the trainer's own log-probs are kept from its own forward pass.
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from logparity.integrations.rebind import Replaced, rebind
from logparity.integrations.step_probe import StepProbe
from logparity.integrations.trl_steps import StepRows, merge_steps, micro_batch
from logparity.probe.config import ProbeConfig

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("logparity.trl")

_HOME = "trl.trainer.utils"
_NAMES = ("selective_log_softmax", "entropy_from_logits", "selective_log_softmax_and_entropy")


class ProbeMixin:
    """Put before `GRPOTrainer` among the bases of a class; see `with_probe` for the one-line form.

    The rows of a step's micro-batches are compared together once the step is over, so that maxima and percentiles are
    the step's. ``old_per_token_logps`` are the trainer's side where TRL has them, else the forward pass of the loss
    under the same weights. The mask is ``completion_mask * tool_mask``. Only the training mode is watched.

    Args:
        *args: of the trainer.
        **kwargs: of the trainer.
    """

    logparity_config: ClassVar[ProbeConfig] = ProbeConfig(enabled=True)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._logparity = StepProbe(self.logparity_config, logger)
        self._logparity_rows = StepRows()
        self._logparity_scored: Any = None
        self._logparity_waiting: list[dict[str, float]] = []
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        result = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]
        if self.logparity_config.enabled:
            log_probs = result[0] if isinstance(result, tuple) else result
            self._logparity_scored = log_probs.detach()
        return result

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)  # type: ignore[misc]
        if self.logparity_config.enabled and model.training:
            self._logparity.guard(lambda: self._logparity_take(inputs), "micro-batch")
        self._logparity_scored = None
        return loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as the trainer does, with the metrics of the steps since the last time."""
        if self.logparity_config.enabled and self.model.training:  # type: ignore[attr-defined]
            self._logparity_close()
            logs = {**logs, **merge_steps(self._logparity_waiting)}
            self._logparity_waiting = []
        super().log(logs, *args, **kwargs)  # type: ignore[misc]

    def _logparity_take(self, inputs: Any) -> None:
        step = int(self.state.global_step)  # type: ignore[attr-defined]
        if self._logparity_rows.step != step:
            self._logparity_close()
        taken = micro_batch(inputs, self._logparity_scored)
        if taken is None:
            self._logparity.say(
                "missing",
                "no sampling_per_token_logps: the engine's log-probs are needed (use_vllm=True, or a rollout_func that "
                "returns them); nothing is compared",
            )
            return
        self._logparity_rows.add(step, taken)

    def _logparity_close(self) -> None:
        rows, self._logparity_rows = self._logparity_rows, StepRows()
        if rows.step is not None:
            # The step that the optimiser is about to finish: TRL logs it under the number after.
            self._logparity_waiting.append(self._logparity.observe(rows.batch, step=rows.step + 1))


def with_probe(trainer: type, config: ProbeConfig | None = None, *, save_dir: str | Path | None = None) -> type:
    """A trainer class that compares every step.

    Args:
        trainer: `trl.GRPOTrainer` or a subclass of it.
        config: what to do; None for all defaults, switched on.
        save_dir: folder for the ``.npy`` pairs, in place of the config's; under several processes each writes its own
            ``rank{r}`` below it.

    Returns:
        A subclass with the trainer's own arguments.
    """
    config = config or ProbeConfig(enabled=True)
    folder = Path(save_dir) if save_dir is not None else config.save_dir
    settings = _of_rank(config, folder)
    return type(f"Probed{trainer.__name__}", (ProbeMixin, trainer), {"logparity_config": settings})


def selective_log_softmax(
    logits: Tensor, index: Tensor, temperature: float = 1.0, row_mask: Tensor | None = None
) -> Tensor:
    """Score ids as TRL's function of this name does, in float32 whatever the logits are.

    Args:
        logits: ``[.., V]``.
        index: int64 ``[..]``, or ``[.., K]`` for several ids per row.
        temperature: divides the logits.
        row_mask: like ``index`` without its last axis where that is ``K``; rows with 0 score 0.

    Returns:
        Log-probs in the shape of ``index``, nats.
    """
    import torch

    from logparity.integrations.scores import scores

    if index.dim() == logits.dim() - 1:
        return scores(logits, index, temperature=temperature, row_mask=row_mask)[0]
    masks = [row_mask] * index.shape[-1]
    if row_mask is not None and row_mask.shape == index.shape:
        masks = list(row_mask.unbind(-1))
    columns = [
        scores(logits, ids, temperature=temperature, row_mask=mask)[0]
        for ids, mask in zip(index.unbind(-1), masks, strict=True)
    ]
    return torch.stack(columns, dim=-1)


def entropy_from_logits(logits: Tensor, chunk_size: int = 128) -> Tensor:  # noqa: ARG001
    """Entropy ``[.., V]`` -> ``[..]`` in nats; the chunk size is ours to choose, results do not depend on it."""
    from logparity.integrations.scores import entropy_of

    return entropy_of(logits)


def selective_log_softmax_and_entropy(
    logits: Tensor,
    index: Tensor,
    entropy_requires_grad: bool = True,
    temperature: float = 1.0,
    row_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropy of each row in one pass; arguments as `selective_log_softmax`.

    Args:
        logits: ``[.., V]``.
        index: int64 ``[..]``.
        entropy_requires_grad: whether a gradient flows through the entropy.
        temperature: divides the logits.
        row_mask: rows with 0 give 0 for both.

    Returns:
        Log-probs and entropies ``[..]``, nats.
    """
    from logparity.integrations.scores import scores

    mode = "grad" if entropy_requires_grad else "value"
    log_probs, entropy = scores(logits, index, temperature=temperature, row_mask=row_mask, entropy=mode)
    assert entropy is not None  # asked for
    return log_probs, entropy


def use_token_log_probs() -> Replaced:
    """Replace TRL's ``selective_log_softmax`` and entropies by ours in this process.

    TRL 1.16 calls them in DPO, ORPO, CPO and other trainers that hold logits; its GRPO, RLOO, KTO and SFT trainers
    score through a fused output layer of their own, which is left as it is.

    Returns:
        Where they were replaced; its ``undo`` puts TRL's back.
    """
    home = import_module(_HOME)
    done = Replaced()
    for name in _NAMES:
        if hasattr(home, name):
            done += rebind("trl", getattr(home, name), globals()[name])
    return done


def _of_rank(config: ProbeConfig, folder: Path | None) -> ProbeConfig:
    import os
    from dataclasses import replace

    rank = int(os.environ.get("RANK", "0"))
    if config.run_dir is not None:  # the store knows ranks
        return replace(config, enabled=True, save_dir=folder, rank=rank)
    if folder is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        folder = folder / f"rank{rank}"
    return replace(config, enabled=True, save_dir=folder)


__all__ = [
    "ProbeMixin",
    "entropy_from_logits",
    "selective_log_softmax",
    "selective_log_softmax_and_entropy",
    "use_token_log_probs",
    "with_probe",
]
