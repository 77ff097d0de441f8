"""Write golden values of the real verl and TRL losses, corrections, and advantages.

Run in a virtual environment of its own (both packages are heavy), from the repository root:

    python -m venv /tmp/golden && . /tmp/golden/bin/activate
    pip install -c constraints.txt torch trl==1.16.0 "transformers>=5.5.3,<5.11" "ray[default]" "tensordict<=0.10"
    pip install hydra-core codetiming
    pip install --no-deps verl==0.9.1
    python tests/losses/golden/make_golden.py

Everything runs in float64 on the packages' own functions. TRL keeps its advantages and its importance-sampling modes
in the middle of a long method; those statements are cut out of the installed source by their first and last line and
executed unchanged.
"""

from __future__ import annotations

import inspect
import json
import math
import textwrap
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import ActorConfig

LENGTHS = (7, 4, 1, 6, 7, 5)
WIDTH = 8
GROUPS = (0, 0, 0, 1, 1, 1)
REWARDS = (1.0, 0.0, 0.5, 0.25, 0.25, 2.0)


def inputs() -> dict[str, torch.Tensor]:
    """One batch with ratios on both sides of every bound, a tool gap, and ragged lengths."""
    generator = torch.Generator().manual_seed(7)

    def normal(scale: float) -> torch.Tensor:
        return torch.randn(len(LENGTHS), WIDTH, generator=generator, dtype=torch.float64) * scale

    mask = torch.tensor([[float(j < length) for j in range(WIDTH)] for length in LENGTHS], dtype=torch.float64)
    mask[0, 2:4] = 0
    old = -normal(1.5).abs() - 0.05
    per_sequence = torch.tensor([1.3, -0.4, 0.7, -1.1, 0.2, -0.9], dtype=torch.float64)[:, None]
    return {
        "mask": mask,
        "old_log_probs": old,
        "log_probs": old + normal(0.5),
        "ref_log_probs": old + normal(0.4),
        "rollout_log_probs": old + normal(0.6),
        "advantages": per_sequence.expand(-1, WIDTH).contiguous(),
        "token_advantages": normal(1.0),
        "values": normal(1.0),
        "old_values": normal(1.0),
        "token_rewards": normal(0.5) * mask,
    }


def with_gradient(batch: dict[str, torch.Tensor], function: Any) -> dict[str, Any]:
    """Loss and gradient with respect to the log-probs of ``function(log_probs)``."""
    log_probs = batch["log_probs"].clone().requires_grad_()
    loss = function(log_probs)
    loss.backward()
    return {"loss": loss.item(), "gradient": log_probs.grad.tolist()}


def verl_policy(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    cases = {
        "vanilla": {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0},
        "vanilla_tight_dual": {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "clip_ratio_c": 1.2},
        "gspo": {"clip_ratio_low": 0.03, "clip_ratio_high": 0.04},
        "cispo": {"clip_ratio_low": 1.0, "clip_ratio_high": 0.3},
    }
    modes = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
    found: dict[str, Any] = {}
    for case, options in cases.items():
        config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)
        advantages = batch["advantages" if case == "gspo" else "token_advantages"]
        function = core_algos.get_policy_loss_fn(case.split("_")[0])
        for mode in modes:
            config.global_batch_info.clear()
            if mode.endswith("norm"):
                config.global_batch_info["loss_scale_factor"] = 12
            given = (advantages, batch["mask"], mode, config)
            metrics = function(batch["old_log_probs"], batch["log_probs"], *given)[1]
            loss = partial(lambda function, given, lp: function(batch["old_log_probs"], lp, *given)[0], function, given)
            found[f"{case}/{mode}"] = {**with_gradient(batch, loss), "metrics": metrics}
    return found


def verl_rest(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    mask, old, rollout = batch["mask"], batch["old_log_probs"], batch["rollout_log_probs"]
    kl = {
        kind: with_gradient(
            batch, lambda lp, kind=kind: (core_algos.kl_penalty(lp, batch["ref_log_probs"], kind) * mask).sum()
        )
        for kind in ("k1", "k2", "k3")
    }
    value, fraction = core_algos.compute_value_loss(
        batch["values"], batch["token_rewards"], batch["old_values"], mask, cliprange_value=0.2
    )
    correction: dict[str, Any] = {}
    for level in ("token", "sequence"):
        for name, threshold in (("truncate", 2.0), ("icepop", "0.5_5.0")):
            for normalise in (False, True):
                weights, _ = rollout_corr_helper.compute_rollout_correction_weights(
                    old - rollout,
                    mask,
                    rollout_is=level,
                    rollout_is_threshold=threshold,
                    rollout_is_batch_normalize=normalise,
                )
                correction[f"{level}/{name}/{normalise}"] = (weights * mask).tolist()
    rejection = {}
    for option in ("token_k1", "seq_sum_k1", "seq_mean_k1"):
        for bounds in ("0.5_2.0", "0.8_1.5"):
            kept, _ = rollout_corr_helper.compute_rollout_rejection_mask(old - rollout, mask, option, bounds)
            rejection[f"{option}/{bounds}"] = kept.tolist()
    return {
        "kl": kl,
        "value": {"loss": value.item(), "clip_fraction": fraction.item()},
        "correction": correction,
        "rejection": rejection,
        "rewards": core_algos.compute_rewards(batch["token_rewards"], old, batch["ref_log_probs"], 0.1).tolist(),
    }


def verl_advantages(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    mask = batch["mask"]
    outcome = torch.zeros_like(mask)
    outcome[:, 0] = torch.tensor(REWARDS, dtype=torch.float64)
    gae, returns = core_algos.compute_gae_advantage_return(
        batch["token_rewards"], batch["values"], mask, torch.tensor(0.99), torch.tensor(0.9)
    )
    common = {"response_mask": mask, "index": list(GROUPS)}
    return {
        "grpo": core_algos.compute_grpo_outcome_advantage(outcome.clone(), **common)[0].tolist(),
        "dr_grpo": core_algos.compute_grpo_outcome_advantage(outcome.clone(), norm_adv_by_std_in_grpo=False, **common)[
            0
        ].tolist(),
        "rloo": core_algos.compute_rloo_outcome_advantage(outcome.clone(), **common)[0].tolist(),
        "reinforce_plus_plus_baseline": core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
            outcome.clone(), **common
        )[0].tolist(),
        "reinforce_plus_plus": core_algos.compute_reinforce_plus_plus_outcome_advantage(
            batch["token_rewards"].clone(), mask, config=SimpleNamespace(gamma=0.97)
        )[0].tolist(),
        "gae_whitened": (gae * mask).tolist(),
        "gae_returns": (returns * mask).tolist(),
        "group_of_one": core_algos.compute_grpo_outcome_advantage(
            torch.tensor([[3.0]], dtype=torch.float64), torch.ones(1, 1), index=[0]
        )[0].item(),
    }


def trl_trainer(batch: dict[str, torch.Tensor], log_probs: torch.Tensor, **options: Any) -> Any:
    """What `GRPOTrainer._compute_loss` reads of its trainer; the model call returns the given log-probs."""
    args = SimpleNamespace(delta=options.pop("delta", None), use_bias_correction_kl=options.pop("unbiased", False))
    defaults = {
        "args": args,
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "loss_type": "grpo",
        "epsilon_low": 0.2,
        "epsilon_high": 0.28,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "model": SimpleNamespace(training=False),
        "max_completion_length": 12,
        "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False,
        "_metrics": {"train": MetricLists(), "eval": MetricLists()},
        "accelerator": SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x),
        "_get_per_token_logps_and_entropies": lambda *_, **__: (log_probs, torch.zeros_like(log_probs), None),
        "get_off_policy_mask": GRPOTrainer.get_off_policy_mask,
    }
    return SimpleNamespace(**{**defaults, **options})


class MetricLists(dict):
    """A list under every name."""

    def __missing__(self, key: str) -> list[float]:
        self[key] = []
        return self[key]


def trl_policy(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    cases: dict[str, dict[str, Any]] = {
        "grpo": {},
        "bnpo": {"loss_type": "bnpo"},
        "dr_grpo": {"loss_type": "dr_grpo"},
        "dapo": {"loss_type": "dapo"},
        "grpo_delta": {"delta": 1.5},
        "grpo_kl": {"beta": 0.1},
        "grpo_kl_unbiased": {"beta": 0.1, "unbiased": True},
        "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
        "gspo": {"importance_sampling_level": "sequence", "epsilon_low": 0.03, "epsilon_high": 0.04},
        "opsm": {"off_policy_mask_threshold": 0.05},
    }
    found = {}
    for case, options in cases.items():

        def loss(log_probs: torch.Tensor, options: dict[str, Any] = options) -> torch.Tensor:
            ids = torch.zeros(len(LENGTHS), WIDTH, dtype=torch.int64)
            given = {
                "prompt_ids": ids[:, :1],
                "prompt_mask": torch.ones_like(ids[:, :1]),
                "completion_ids": ids,
                "completion_mask": batch["mask"],
                "advantages": batch["advantages"][:, 0],
                "old_per_token_logps": batch["old_log_probs"],
                "ref_per_token_logps": batch["ref_log_probs"],
                "num_items_in_batch": batch["mask"].sum(),
            }
            return GRPOTrainer._compute_loss(trl_trainer(batch, log_probs, **options), None, given)

        found[case] = with_gradient(batch, loss)
    return found


def source_block(method: Any, first: str, last: str) -> str:
    """The lines of a method from the one that starts with ``first`` to the one that starts with ``last``."""
    lines = inspect.getsource(method).splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(first))
    stop = next(i for i in range(start, len(lines)) if lines[i].strip().startswith(last))
    return textwrap.dedent("\n".join(lines[start : stop + 1]))


def trl_importance_sampling(batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    block = source_block(GRPOTrainer._generate_and_score_completions, "sequence_level_is =", "raise ValueError(")
    block = block[: block.rindex("else:")]  # the statements before the error branch
    found = {}
    for level in ("token", "sequence"):
        for mode, low, high in (("truncate", None, 2.0), ("mask", 0.5, 5.0)):
            trainer = SimpleNamespace(
                vllm_importance_sampling_mode=f"{level}_{mode}",
                vllm_importance_sampling_clip_min=low,
                vllm_importance_sampling_clip_max=high,
            )
            difference = (batch["old_log_probs"] - batch["rollout_log_probs"]) * batch["mask"]
            names = {"self": trainer, "per_token_logps_diff": difference, "torch": torch, "math": math}
            exec(block, names)
            found[f"{level}/{mode}"] = names["vllm_importance_sampling_ratio"].expand(-1, WIDTH).tolist()
    return found


def trl_advantages() -> dict[str, Any]:
    from trl.trainer import grpo_trainer

    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    block = source_block(
        GRPOTrainer._generate_and_score_completions,
        "mean_grouped_rewards = torch.nanmean",
        "advantages = advantages / (std",
    )
    found = {}
    for scale in ("group", "none"):
        names = {
            **vars(grpo_trainer),
            "self": SimpleNamespace(scale_rewards=scale),
            "rewards": rewards,
            "num_generations": 3,
        }
        exec(block, names)
        found[f"grpo/{scale}"] = names["advantages"].tolist()
    block = source_block(
        RLOOTrainer._generate_and_score_completions, "grouped_rewards = ", "advantages = rewards - baselines"
    )
    names = {**vars(grpo_trainer), "self": SimpleNamespace(), "rewards": rewards, "num_generations": 3}
    exec(block, names)
    found["rloo"] = names["advantages"].tolist()
    return found


def main() -> None:
    """Write golden.json next to this file."""
    batch = inputs()
    golden = {
        "versions": {name: version(name) for name in ("torch", "verl", "trl", "transformers")},
        "lengths": LENGTHS,
        "groups": GROUPS,
        "rewards": REWARDS,
        "inputs": {name: tensor.tolist() for name, tensor in batch.items()},
        "verl": {"policy": verl_policy(batch), **verl_rest(batch), "advantages": verl_advantages(batch)},
        "trl": {
            "policy": trl_policy(batch),
            "importance_sampling": trl_importance_sampling(batch),
            "advantages": trl_advantages(),
        },
    }
    path = Path(__file__).with_name("golden.json")
    path.write_text(json.dumps(golden, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
