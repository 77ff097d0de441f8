"""Megatron-Core's optimizer and learning-rate schedule, and no step on a gradient that is not finite."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core.optimizer import OptimizerConfig as MegatronOptimizerConfig
from megatron.core.optimizer import get_megatron_optimizer, get_standard_config_overrides
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor
from torch.nn import Parameter

from logparity.actors.megatron import cpu
from logparity.actors.megatron.naming import placed_parameters
from logparity.actors.megatron.torch_adamw import make_checkpointable
from logparity.actors.optimizer import OptimizerConfig, StepResult
from logparity.errors import InputError

if TYPE_CHECKING:
    from logparity.actors.megatron.build import MegatronModel

_FOREVER = 2**62  # decay steps of a rate that does not decay
_STYLES = ("constant", "linear", "cosine", "inverse-square-root")


@dataclass(frozen=True, slots=True)
class DecayConfig:
    """How the learning rate falls after warm-up.

    Args:
        style: ``constant``, ``linear``, ``cosine``, or ``inverse-square-root``.
        steps: step at which ``min_lr`` is reached, warm-up included; None only for a constant rate.
        min_lr: where it ends.

    Raises:
        InputError: an unknown style, or a style without its steps.
    """

    style: str = "constant"
    steps: int | None = None
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        if self.style not in _STYLES:
            raise InputError(
                f"style of the learning-rate decay: expected one of {', '.join(_STYLES)}, got {self.style!r}."
            )
        if (self.steps is None) != (self.style == "constant"):
            raise InputError(
                f"steps of the learning-rate decay: expected a number, and none for constant, got {self.steps}."
            )


class ShardedOptimizer:
    """AdamW on float32 masters, held and stepped by Megatron-Core.

    Args:
        model: built with gradients.
        config: rate, moments, decay, clipping, warm-up.
        decay: how the rate falls after warm-up.
        distributed: share masters and moments over the ranks that hold the same weights.
        initial_loss_scale: first factor on an fp16 model's loss; doubled after 1,000 good steps, halved by a bad one.
    """

    def __init__(
        self,
        model: MegatronModel,
        config: OptimizerConfig,
        decay: DecayConfig | None = None,
        *,
        distributed: bool = False,
        initial_loss_scale: float = 2.0**16,
    ) -> None:
        decay = decay or DecayConfig()
        self._model = model
        self.steps = 0
        settings = MegatronOptimizerConfig(
            optimizer="adam",
            lr=config.lr,
            min_lr=decay.min_lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.betas[0],
            adam_beta2=config.betas[1],
            adam_eps=config.eps,
            clip_grad=config.max_grad_norm,
            fp16=model.config.fp16,
            bf16=model.config.bf16,
            params_dtype=model.config.params_dtype,
            use_distributed_optimizer=distributed,
            initial_loss_scale=initial_loss_scale,
            hysteresis=1,
        )
        with cpu.megatron_calls():
            self.megatron = get_megatron_optimizer(
                settings,
                model.chunks,
                config_overrides=get_standard_config_overrides(settings),  # vectors are never decayed
                use_gloo_process_groups=False,
                pg_collection=model.groups.collection,
            )
            self._schedule = OptimizerParamScheduler(
                self.megatron,
                init_lr=0.0,
                max_lr=config.lr,
                min_lr=decay.min_lr,
                lr_warmup_steps=config.warmup_steps,
                lr_decay_steps=decay.steps or _FOREVER,
                lr_decay_style=decay.style,
                start_wd=config.weight_decay,
                end_wd=config.weight_decay,
                wd_incr_steps=_FOREVER,
                wd_incr_style="constant",
            )
        make_checkpointable(self.megatron)
        self.attach()

    def attach(self) -> None:
        """Tell the schedule how losses are scaled and gradients reduced."""
        from megatron.core.distributed import finalize_model_grads

        self._model.config.grad_scale_func = self.megatron.scale_loss
        self._model.config.finalize_model_grads_func = finalize_model_grads

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for chunk in self._model.chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]
        with _megatron_calls():
            self.megatron.zero_grad()

    @torch.no_grad()
    def set_master(self, parameter: Parameter, values: Tensor) -> None:
        """Copy values into the part of a parameter's float32 master that is on this rank, if any.

        Args:
            parameter: of the model.
            values: in its shape.
        """
        master = getattr(parameter, "main_param", None)
        if master is None:
            return
        if getattr(parameter, "main_param_sharded", False):
            part = self._range(parameter)
            values = values.reshape(-1)[part.start : part.end]
        master.copy_(values.reshape(master.shape))

    def step(self) -> StepResult:
        """Clip and apply the gradients; where one is not finite on any rank, every rank leaves the weights alone."""
        bad = self._first_bad()
        with _megatron_calls():
            if bad is None:
                self._schedule.step(1)
                taken, norm, _ = self.megatron.step()
                if taken:
                    self.steps += 1
                    return StepResult(float(norm), self._lr())
                bad = "none: every gradient is finite until the loss scale is taken off"
            elif self._model.config.fp16:
                self.megatron.step()  # sees the same gradients, steps nothing, and lowers the loss scale
        return StepResult(float("nan"), self._lr(), bad)

    @property
    def loss_scale(self) -> float:
        """Current factor on the loss; 1 unless the model computes in fp16."""
        with cpu.megatron_calls():
            return float(self.megatron.get_loss_scale())

    def state_dict(self, model_state: Mapping[str, Any], *, loading: bool) -> dict[str, Any]:
        """Sharded state for `megatron.core.dist_checkpointing`: masters, moments, loss scale, schedule, and steps.

        Args:
            model_state: sharded state of the model.
            loading: whether it is to be filled.

        Returns:
            The state.
        """
        with cpu.megatron_calls():
            sharded = self.megatron.sharded_state_dict(
                dict(model_state), is_loading=loading, metadata={"distrib_optim_sharding_type": _SHARDING}
            )
        return {"optimizer": sharded, "schedule": self._schedule.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what a filled `state_dict` holds."""
        with cpu.megatron_calls():
            self.megatron.load_state_dict(state["optimizer"])
            self._schedule.num_steps = 0
            self._schedule.load_state_dict(dict(state["schedule"]))
        self.steps = int(state["steps"])

    def _lr(self) -> float:
        return next((float(group["lr"]) for group in self.megatron.param_groups if group["params"]), 0.0)

    def _range(self, parameter: Parameter) -> Any:
        for optimizer in self.megatron.chained_optimizers:
            if parameter in getattr(optimizer, "model_param_gbuf_map", {}):
                return optimizer._get_model_param_range_map(parameter)["param"]
        raise InputError("parameter: expected one of the model this optimizer was made for.")

    def _first_bad(self) -> str | None:
        """Name of the first weight with a gradient that is not finite, the same on every rank; None where all are."""
        sums = [buffer.norm(dtype=torch.float64) for buffer in _buffers(self._model)]
        fine = torch.stack(sums).isfinite().all() if sums else torch.ones((), dtype=torch.bool)
        flag = (~fine).to(cpu.device(), torch.float32).view(1)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if not flag.item():
            return None
        own = next(
            (
                " / ".join(placed.rule.names)
                for placed in placed_parameters(self._model)
                if not bool(placed.parameter.main_grad.isfinite().all())  # type: ignore[attr-defined]
            ),
            None,
        )
        names: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(names, own)
        return next(name for name in names if name is not None)


_SHARDING = "fully_reshardable"
"""Optimizer state is stored in the shapes of the weights, so that another parallel layout can load it."""


@contextmanager
def _megatron_calls() -> Iterator[None]:
    with warnings.catch_warnings(), cpu.megatron_calls():
        # The distributed optimizer asks its shards, which are views, for a gradient that they do not have.
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        yield


def _buffers(model: MegatronModel) -> Iterator[Tensor]:
    for chunk in model.chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):  # type: ignore[misc]
            yield buffer.grad_data


__all__ = ["DecayConfig", "ShardedOptimizer"]
