"""The configuration of a training run: what may be set, its default, and what it means.

A file holds what differs from the defaults; flags override the file. Every section is a small frozen model; the parts
below receive only the section (or the values) they need.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from logparity.errors import ConfigError
from logparity.records import LogProbMode

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

EMBEDDED_MODEL = "smollm2-135m"
"""Name under which the embedded model stands for a folder."""

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Dtype = Literal["bfloat16", "float16", "float32"]


class Section(BaseModel):
    """A part of the configuration: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class RunConfig(Section):
    """Where the run lives and how long it goes on."""

    folder: Path = Path("runs/train")
    """Run folder: metrics.jsonl, prob_diff/, rollouts/, checkpoints/, report.html."""
    steps: Positive = 12
    """Training steps; each samples, scores, compares, and updates."""
    seed: NonNegative = 0
    """Everything random in the run follows from it."""
    checkpoint_every: Positive = 5
    """Steps between checkpoints; the last step always has one."""
    keep_checkpoints: Positive = 2
    """Newest checkpoints kept."""
    report: bool = True
    """Write report.html when the run ends."""


class TaskConfig(Section):
    """Where the prompts come from."""

    name: Literal["digits", "arithmetic"] = "digits"
    """Embedded prompt set, used unless a file is given."""
    file: Path | None = None
    """JSONL with one object per line: {"prompt": ..., "answer": ...}; answer is optional."""
    size: Positive = 64
    """Number of prompts that the arithmetic set generates."""


class RolloutConfig(Section):
    """How responses are sampled."""

    dtype: Dtype = "bfloat16"
    """Compute dtype of the rollout engine."""
    prompts_per_step: Positive = 4
    """Groups in a step."""
    group_size: Positive = 8
    """Responses to each prompt."""
    temperature: PositiveFloat = 1.0
    """Divides logits."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus mass; 1 keeps every token."""
    top_k: NonNegative = 0
    """Number of tokens kept; 0 keeps every token."""
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Smallest kept probability relative to the largest."""
    max_new_tokens: Positive = 16
    """Upper bound on the response length."""
    log_prob_mode: LogProbMode = LogProbMode.PROCESSED
    """Distribution that the reported log-probs belong to: processed = after temperature and top-k/p, raw = before."""
    batch_size: Positive = 64
    """Responses decoded together."""


class OptimizerConfig(Section):
    """AdamW on fp32 master weights."""

    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate."""
    warmup_steps: NonNegative = 0
    """Optimiser steps of linear warm-up."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the first moment."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Decay of the second moment."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""


class MegatronSection(Section):
    """How a Megatron-Core actor is spread over the processes that torchrun started; what is left is data parallel."""

    tensor: Positive = 1
    """Ranks that share every matrix and the vocabulary."""
    pipeline: Positive = 1
    """Stages that share the layers."""
    virtual_pipeline: Positive = 1
    """Model chunks per stage; above 1 the schedule is interleaved."""
    context: Positive = 1
    """Ranks that share the tokens of every sequence."""
    context_layout: Literal["zigzag", "contiguous"] = "zigzag"
    """How tokens are shared out over the context-parallel ranks."""
    expert: Positive = 1
    """Ranks that share the experts of a mixture-of-experts model."""
    sequence_parallel: bool = False
    """Share the norms' activations over the tensor-parallel ranks."""
    distributed_optimizer: bool = False
    """Share masters and moments over the data-parallel ranks."""
    packed: bool = True
    """Sequences lie one after another rather than padded to the longest."""


class FSDPSection(Section):
    """How a Transformers actor is spread over the processes that torchrun started; what is left is data parallel."""

    tensor: Positive = 1
    """Neighbouring ranks that share every matrix and the vocabulary, where the model family has a plan for it."""


class ActorConfig(Section):
    """The trainer's side."""

    backend: Literal["hf", "fsdp", "megatron"] = "hf"
    """hf: Transformers, one process; fsdp: Transformers under FSDP2, megatron: Megatron-Core, both under torchrun."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Compute dtype; float16 with megatron only. Master weights and optimiser state are always float32."""
    micro_batch_tokens: Positive = 2048
    """Most tokens (prompt and response, padding included) in one forward pass."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass."""
    recompute_loss: bool = False
    """Recompute logits in the backward pass instead of holding those of a whole micro-batch."""
    optimizer_steps_per_rollout: Positive = 1
    """Equal parts that a step's samples are cut into, one optimiser step each."""
    epochs: Positive = 1
    """Passes over a step's samples."""
    fsdp: FSDPSection = FSDPSection()
    """Parallel sizes of the fsdp backend."""
    megatron: MegatronSection = MegatronSection()
    """Parallel sizes of the megatron backend."""


class CorrectionSection(Section):
    """Off-policy correction between trainer and rollout engine, from ratio = exp(old_log_probs - rollout_log_probs)."""

    mode: Literal["off", "truncate", "clip", "mask", "none"] = "off"
    """off; truncate (TIS); clip; mask (IcePop, MIS); none: weights of 1, for rejection and veto alone."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """What the ratio is formed over."""
    low: NonNegativeFloat = 0.0
    """Lower bound of the ratio, for clip and mask."""
    high: PositiveFloat = 2.0
    """Upper bound of the ratio."""
    batch_normalise: bool = False
    """Divide weights by their mean over the step."""
    token_veto: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Leave out sequences with any token whose ratio is below this, such as 1e-4."""
    reject_level: Literal["token", "sequence", "geometric"] | None = None
    """Leave out tokens or sequences whose ratio at this level is outside [reject_low, reject_high]."""
    reject_low: NonNegativeFloat = 0.99
    """Smallest ratio kept, literally."""
    reject_high: PositiveFloat = 1.01
    """Largest ratio kept, literally."""


class AlgorithmConfig(Section):
    """The training signal: which advantages and which loss; what is left at none takes the algorithm's own default."""

    name: Literal[
        "grpo",
        "dr_grpo",
        "dapo",
        "gspo",
        "cispo",
        "reinforce",
        "rloo",
        "reinforce++",
        "reinforce++_baseline",
        "ppo",
        "sft",
    ] = "grpo"
    """Algorithm; docs/losses.md has the formulas. ppo trains a value head, sft learns the answers of the task."""
    clip_low: PositiveFloat | None = None
    """The ratio is clipped below 1 - clip_low."""
    clip_high: PositiveFloat | None = None
    """The ratio is clipped above 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound of the loss on tokens with negative advantage, times the advantage; with the clipped loss."""
    reduction: Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "fixed_length"] | None = (
        None
    )
    """How tokens become one number; fixed_length divides by rollout.max_new_tokens."""
    kl_coefficient: NonNegativeFloat = 0.0
    """Weight of the KL term to the frozen reference policy; 0 keeps no reference copy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that KL."""
    kl_unbiased: bool = False
    """Multiply the estimator by the policy ratio, so that its gradient is that of the KL."""
    kl_in_reward: bool = False
    """Take the KL off the reward of every token instead of adding it to the loss; with ppo and reinforce++."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus; 0 costs nothing."""
    opsm_threshold: NonNegativeFloat | None = None
    """Leave out sequences with negative advantage that moved by more than this mean KL, such as 1e-4."""
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount of token rewards; with ppo and reinforce++."""
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Bias against variance of the generalised advantages; with ppo."""
    value_clip: PositiveFloat | None = 0.2
    """A value may move by this much before its clipped error counts; with ppo."""
    value_learning_rate: PositiveFloat = 1e-5
    """Learning rate of the value model; with ppo."""
    strict: bool = False
    """Stop on NaN or infinity on an active token instead of leaving it out and counting it."""
    correction: CorrectionSection = CorrectionSection()
    """Off-policy correction."""


class ProbeSection(Section):
    """The comparison of rollout and trainer, token by token."""

    enabled: bool = False
    """Compare on every step."""
    save_dir: Path | None = None
    """Folder of the per-token .npy pairs, {run} standing for the run folder; none: no files."""
    token_max_print: NonNegative = 10
    """Positions per sample in the grid of metrics."""
    sample_max_print: NonNegative = 8
    """Samples in the grid of metrics."""


class TrackingConfig(Section):
    """Where metrics go besides metrics.jsonl."""

    tensorboard: bool = False
    """Write TensorBoard event files into the run folder."""
    wandb: bool = False
    """Log to Weights & Biases (WANDB_MODE=offline works)."""
    wandb_project: str = "logparity"
    """Project name there."""


class TrainConfig(Section):
    """A whole training run."""

    model: str = EMBEDDED_MODEL
    """Local Hugging Face folder, or smollm2-135m for the embedded model."""
    reward: str = "digits"
    """digits, arithmetic, or module:function taking a RewardSample and returning a number."""
    on_reward_error: Literal["stop", "skip"] = "stop"
    """What to do when a reward raises or is not finite: stop the run, or leave the sample out."""
    run: RunConfig = RunConfig()
    """Where the run lives and how long it goes on."""
    task: TaskConfig = TaskConfig()
    """Where the prompts come from."""
    rollout: RolloutConfig = RolloutConfig()
    """How responses are sampled."""
    actor: ActorConfig = ActorConfig()
    """The trainer's side."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW on fp32 master weights."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """The training signal."""
    probe: ProbeSection = ProbeSection()
    """The comparison of rollout and trainer."""
    tracking: TrackingConfig = TrackingConfig()
    """Where metrics go."""


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> TrainConfig:
    """Read a TOML file, lay overrides over it, and validate the whole.

    Args:
        path: TOML file.
        overrides: nested mapping, as flags give it; wins over the file.

    Returns:
        The resolved configuration.

    Raises:
        ConfigError: the file is missing or not TOML, a key is unknown (names the nearest one), or a value is wrong.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"Config file {path}: expected a TOML file, found none. Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Config file {path}: cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Config file {path}: not valid TOML ({error}).") from None
    return resolve(_merge(values, overrides or {}), source=str(path))


def resolve(values: Mapping[str, Any], source: str) -> TrainConfig:
    """Validate a nested mapping.

    Args:
        values: nested mapping of settings; what is absent takes its default.
        source: where the values came from, for the error.

    Returns:
        The resolved configuration.

    Raises:
        ConfigError: a key is unknown or a value is wrong.
    """
    try:
        config = TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_explain(error)}") from None
    _require_consistent(config, source)
    return config


def _require_consistent(config: TrainConfig, source: str) -> None:
    samples = config.rollout.prompts_per_step * config.rollout.group_size
    if samples % config.actor.optimizer_steps_per_rollout:
        raise ConfigError(
            f"{source}: actor.optimizer_steps_per_rollout = {config.actor.optimizer_steps_per_rollout} must divide the "
            f"samples of a step, rollout.prompts_per_step x rollout.group_size = {samples}."
        )
    if config.actor.backend != "megatron" and config.actor.dtype == "float16":
        raise ConfigError(
            f"{source}: actor.dtype = 'float16' needs loss scaling, which actor.backend = 'megatron' has and "
            f"{config.actor.backend!r} has not. Use bfloat16 or float32."
        )
    if config.actor.backend == "fsdp" and config.algorithm.name == "ppo":
        raise ConfigError(
            f"{source}: algorithm.name = 'ppo' needs a critic, which actor.backend = 'fsdp' has not. Use 'megatron', "
            "'hf', or an algorithm without a critic."
        )
    if config.algorithm.kl_in_reward and config.algorithm.name not in ("ppo", "reinforce++"):
        raise ConfigError(
            f"{source}: algorithm.kl_in_reward works with ppo and reinforce++, which have a reward per token, not with "
            f"{config.algorithm.name}."
        )


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        nested = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merge(below, value) if nested else value  # type: ignore[arg-type]
    return merged


def _explain(error: ValidationError) -> str:
    """The first problem in one line, with the nearest name for an unknown key."""
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    more = f" ({error.error_count() - 1} more problem(s).)" if error.error_count() > 1 else ""
    if problem["type"] != "extra_forbidden":
        return f"{name}: {problem['msg']}, got {problem['input']!r}.{more}"
    near = difflib.get_close_matches(name, _all_keys(TrainConfig), n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else " See logparity train --help for every key."
    return f"unknown key '{name}'.{hint}{more}"


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _all_keys(field.annotation, f"{prefix}{name}.")
    return keys
