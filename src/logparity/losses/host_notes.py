"""What other frameworks call each loss, and where their numbers differ from ours: facts, and how they were got."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Host:
    """A framework that was compared.

    Args:
        name: as used in `NOTES`.
        version: released version, or commits of the files that were read.
        evidence: how the notes were got.
    """

    name: str
    version: str
    evidence: str


HOSTS: Final = (
    Host("verl", "0.9.1", "run: its functions' losses, gradients, and metrics are recorded and compared by the tests"),
    Host(
        "TRL",
        "1.16.0",
        "run: likewise, `GRPOTrainer._compute_loss` and the statements it forms weights and advantages by",
    ),
    Host(
        "miles",
        "commits 1718d16, 347a58e, 06ea7c6, 0b51fb8",
        "read, not run; slime, which it grew out of, was not read",
    ),
    Host("NeMo-RL", "commits 006907a, 00925dd", "read, not run"),
    Host("OpenRLHF", "commits f5b3f08, 02a2605", "read, not run"),
)

_SAME = "same numbers"

NOTES: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "clip": {
        "verl": (
            "`loss_mode: vanilla`",
            "same numbers; dual clip is always on, `clip_ratio_c` 3.0, where ours is off unless asked for",
        ),
        "TRL": (
            "`epsilon`, `epsilon_high`, `delta`",
            "same numbers; `delta` caps the ratio before the minimum, which for `delta >= 1 + epsilon_high` is the "
            "dual clip; the exponent is not clamped, so an extreme token makes the loss infinite",
        ),
        "miles": (
            "`--eps-clip`, `--eps-clip-high`, `--eps-clip-c`",
            "same formula; a NaN or infinite log-ratio is replaced by 0, a ratio of 1, without a count",
        ),
        "NeMo-RL": ("`ratio_clip_min`, `ratio_clip_max`, `ratio_clip_c`", "same formula; the exponent is not clamped"),
        "OpenRLHF": (
            "`PolicyLoss`: `clip_eps_low`, `clip_eps_high`, `dual_clip`",
            "same formula; the exponent is not clamped; an all-masked batch divides by 0",
        ),
    },
    "gspo": {
        "verl": (
            "`loss_mode: gspo`",
            "same numbers and gradient per token; the log-ratio is clamped above at 10 and not below; the bounds "
            "default to those of PPO, 0.2, far wider than the paper's",
        ),
        "TRL": (
            "`importance_sampling_level: sequence`, `loss_type: grpo`",
            "same numbers: the gradient goes through the sequence mean, which is equal where a sequence has one "
            "advantage",
        ),
        "miles": (
            "`--advantage-estimator gspo`",
            "same formula, gradient through the sequence mean; under context parallelism it gathers every token, "
            "ours one number per sequence",
        ),
        "NeMo-RL": (
            "`sequence_level_importance_ratios`",
            "same formula, gradient through the sequence mean; only with the sequence mean of token means",
        ),
        "OpenRLHF": ('`policy_loss_type="gspo"`', "same formula, gradient through the sequence mean"),
    },
    "cispo": {
        "verl": ("`loss_mode: cispo`", "same numbers; default bounds 0.2 on both sides, ours none below and 5 above"),
        "TRL": (
            "`loss_type: cispo`",
            "`epsilon_high` is the bound of the weight itself: 5.0 there is `clip_high=4.0` here; no lower bound",
        ),
        "NeMo-RL": ("`use_cispo`", "same formula with `ratio_clip_min` and `ratio_clip_max` (0.2)"),
    },
    "reinforce": {
        "verl": (
            "`bypass_mode` with `loss_type: reinforce`",
            "read, not run: same formula, times the correction's weights",
        ),
        "NeMo-RL": ("`disable_ppo_ratio`", "same formula"),
    },
    "opsm": {
        "TRL": (
            "`off_policy_mask_threshold`",
            "same numbers where the sampler's log-probs are the old ones; otherwise it measures against the "
            "sampler's, and counts tokens the sampler could not score as no drift",
        ),
        "miles": ("`--use-opsm`, `--opsm-delta`", "same formula; applied by multiplying with 0"),
        "verl": ("-", "not found in 0.9.1"),
    },
    "kl": {
        "verl": (
            "`kl_loss_type: low_var_kl` or `k3`, `k1`, `k2`",
            "same numbers and clamps; `k3+` takes the value of k3 and the gradient of k2, which ours has not; no "
            "unbiased form",
        ),
        "TRL": (
            "`beta`, `use_bias_correction_kl`",
            "same numbers, k3 only, without clamps; the unbiased form is on by default as soon as `beta > 0`, ours "
            "is not",
        ),
        "miles": (
            "`--kl-loss-type`, `--use-unbiased-kl`",
            "`k3` has no clamps; `low_var_kl` is clamped to +-10 after the unbiased factor, and not before the "
            "exponential",
        ),
        "NeMo-RL": (
            "`reference_policy_kl_type`, `kl_input_clamp_value` 20, `kl_output_clamp_value` 10",
            "same clamps; always multiplied by `exp(lp - sg(lp))`, value 1, which adds the score-function gradient: "
            "the gradient of our unbiased form at `old = lp`",
        ),
        "OpenRLHF": ("`kl_estimator`: k1, k2, k3", "no clamps, no unbiased form"),
    },
    "entropy": {
        "verl": ("`entropy_coeff`", "same formula (read, not run)"),
        "TRL": (
            "`entropy_coef`",
            "its mean is over the micro-batch's tokens, so the bonus depends on how a step is split (read, not run)",
        ),
        "miles": ("`--entropy-coef`", "same formula"),
    },
    "value": {
        "verl": ("`cliprange_value` 0.5", "same numbers with `clip=0.5`; the factor is 0.5 as well"),
        "miles": (
            "`--value-clip`",
            "no factor 0.5: `coefficient=1` here; its clip fraction counts moved values, not clipped losses",
        ),
        "OpenRLHF": ("`ValueLoss`: `clip_eps`", "same formula, factor 0.5"),
    },
    "sft": {
        "verl": (
            "`sft_loss`",
            "same formula (read, not run); with packed inputs it aligns mask and log-probs by rolling the mask over "
            "sequence borders",
        ),
        "miles": ("`--loss-type sft_loss`", "same formula"),
        "OpenRLHF": ("`SFTLoss`", "same formula; an all-masked batch divides by 0"),
        "NeMo-RL": ("`NLLLossFn`", "same formula, token mean over the global count"),
    },
    "reduction": {
        "verl": (
            "`token-mean`, `seq-mean-token-mean`, `seq-mean-token-sum`, `seq-mean-token-sum-norm`",
            "same numbers; the norm's default length is the width of the padded micro-batch, ours must be given",
        ),
        "TRL": (
            "`loss_type`: `grpo`, `bnpo` and `dapo`, `dr_grpo`",
            "same numbers on one whole batch; `bnpo` and `grpo` average micro-batches of unlike size as equals; "
            "`grpo` and `dr_grpo` count all-masked sequences in the denominator",
        ),
        "miles": (
            "sum of sample means, or `--calculate-per-token-loss`",
            "rejected tokens leave numerators only, as here",
        ),
        "NeMo-RL": ("`token_level_loss`", "same formulas with global counts"),
        "OpenRLHF": ("`token_level_loss`", "means over the micro-batch, not the step"),
    },
    "correction": {
        "verl": (
            "`rollout_is: token` or `sequence`, `rollout_is_threshold: 2.0` or `lower_upper` (IcePop)",
            "same numbers, batch normalisation included; no geometric weights",
        ),
        "TRL": (
            "`vllm_importance_sampling_mode`, `vllm_importance_sampling_clip_max`",
            "same numbers; its default is `sequence_mask` at 3.0, ours token truncation at 2; tokens without a "
            "rollout log-prob get weight 1, ours are left out and counted",
        ),
        "miles": (
            "`--use-tis`, `--tis-clip`; `mis.py`: `tis_level`, `tis_mode`, `tis_batch_normalize`",
            "same formulas; bounds that are not given become each other's reciprocal in `mis.py`, ours are literal; "
            "the built-in TIS clamps at both ends",
        ),
        "NeMo-RL": (
            "`truncated_importance_sampling_type`: `tis`, `icepop`, `seq-mask-tis`",
            "same formulas; NaN and infinite weights become 0 without a count",
        ),
    },
    "rejection": {
        "verl": (
            "`rollout_rs`: `token_k1`, `seq_sum_k1`, `seq_mean_k1`",
            "its bounds hold for rollout/train: `0.8_1.5` keeps train/rollout in [1/1.5, 1/0.8]; ours hold for "
            "train/rollout as written; equal where the bounds are reciprocal; its k2, k3, and maxima are not "
            "here; rejected tokens leave its response mask, ours stay counted in the denominators",
        ),
        "miles": (
            "`mis.py`: `use_rs`, `rs_level`, `rs_veto_threshold`",
            "same formulas; the veto needs `use_rs`; numerators only, as here",
        ),
        "NeMo-RL": (
            "`seq-mask-tis`",
            "a geometric rejection with untruncated token weights: mode truncate with `high=inf` here",
        ),
    },
    "grpo": {
        "verl": (
            "`adv_estimator: grpo`, `norm_adv_by_std_in_grpo`",
            "same numbers; a group of one trains on its raw reward there, on 0 here; rejected responses stay in the "
            "baseline",
        ),
        "TRL": (
            "`scale_rewards: group` or `none`",
            "same numbers with `epsilon=1e-4`; a NaN reward is left out of the baseline silently, ours must be "
            "marked invalid",
        ),
        "NeMo-RL": (
            "`GRPOAdvantageEstimator`",
            "by default a leave-one-out baseline and the group's std; the baseline honours a validity mask, as here",
        ),
        "miles": (
            "`--advantage-estimator grpo`",
            "spreads rewards that were normalised where they were collected; not compared",
        ),
    },
    "rloo": {
        "verl": ("`adv_estimator: rloo`", "same numbers; a group of one keeps its raw reward there, 0 here"),
        "TRL": (
            "`RLOOTrainer`",
            "same numbers; KL goes into the reward by default (`beta` 0.05), here through `token_rewards`",
        ),
    },
    "reinforce_plus_plus": {
        "verl": ("`adv_estimator: reinforce_plus_plus`, `.._baseline`", _SAME),
        "miles": (
            "`--advantage-estimator reinforce_plus_plus`",
            "discounts over tool tokens as well; a fully masked sequence is an assertion",
        ),
        "NeMo-RL": (
            "`ReinforcePlusPlusAdvantageEstimator`",
            "no discounted returns; variance over n, clamped at 1e-8; an empty mask gives NaN",
        ),
    },
    "gae": {
        "verl": ("`adv_estimator: gae`", "same numbers after `whiten`, which it always applies"),
        "miles": ("`get_advantages_and_returns_batch`", "tool tokens are not passed over"),
        "NeMo-RL": ("`GeneralizedAdvantageEstimator`", "documented to pass over masked tokens, as here"),
    },
    "whiten": {
        "verl": ("`masked_whiten`", "same numbers; raises on a mask of none or one, as here"),
        "OpenRLHF": ("`masked_normalize`", "variance over n, clamped at 1e-8; an empty mask gives NaN"),
        "NeMo-RL": ("inside the estimators", "variance over n, clamped at 1e-8"),
    },
}
