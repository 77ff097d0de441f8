"""A real `GRPOTrainer` of the installed TRL, three steps on the CPU: run by ``make test-trl`` in a venv of its own."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from logparity.integrations import trl as ours
from logparity.integrations.trl import with_probe
from logparity.models.smollm2 import prepare_smollm2
from logparity.probe import ProbeConfig, analyze_folder

pytestmark = pytest.mark.trl

STEPS, ROWS, WIDTH = 3, 8, 12


def sample(trainer, prompts: list[str]) -> dict[str, list]:
    """A rollout engine of its own: the model in bfloat16, with the log-prob of every token that it samples."""
    # A copy of the trainer's model would run the trainer's own forward: TRL binds it to the instance.
    engine = AutoModelForCausalLM.from_config(trainer.model.config, dtype=torch.bfloat16).eval()
    engine.load_state_dict(trainer.model.state_dict())
    found: dict[str, list] = defaultdict(list)
    for row, prompt in enumerate(prompts):
        ids = trainer.processing_class(prompt)["input_ids"]
        chosen, log_probs, cache, given = [], [], None, torch.tensor([ids])
        with torch.no_grad():
            for _ in range(WIDTH - row % 3):
                output = engine(given, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                distribution = output.logits[0, -1].float().log_softmax(-1)
                token = int(torch.multinomial(distribution.exp(), 1))
                chosen.append(token)
                log_probs.append(float(distribution[token]))
                given = torch.tensor([[token]])
        found["prompt_ids"].append(ids)
        found["completion_ids"].append(chosen)
        found["logprobs"].append(log_probs)
        found["env_mask"].append([1] * (len(chosen) - 2) + [0, 1])
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One run with the probe on; what the loss was given is captured beside it."""
    root = tmp_path_factory.mktemp("trl")
    captured = []

    class Capturing(trl.GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            result = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self.scored = result[0].detach().clone()
            return result

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            old = inputs.get("old_per_token_logps")
            captured.append(
                {
                    "step": self.state.global_step + 1,
                    "rollout": inputs["sampling_per_token_logps"].clone().numpy(),
                    "old": (self.scored if old is None else old).clone().numpy(),
                    "mask": (inputs["completion_mask"] * inputs["tool_mask"]).numpy().astype(bool),
                }
            )
            return loss

    model = str(prepare_smollm2())
    dataset = Dataset.from_dict({"prompt": [f"{a} plus 2 is" for a in range(16)]})
    args = trl.GRPOConfig(
        output_dir=str(root / "out"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=ROWS // 2,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=WIDTH,
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=1e-6,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = with_probe(Capturing, ProbeConfig(strict=True), save_dir=root / "diff")(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
        args=args,
        train_dataset=dataset,
        rollout_func=lambda prompts, trainer: sample(trainer, prompts),
    )
    trainer.train()
    return root, trainer.state.log_history, captured


def step_tokens(captured: list[dict], step: int) -> tuple[np.ndarray, np.ndarray]:
    """Rollout and train log-probs of a step's active tokens, float64, in the order of its micro-batches."""
    parts = [batch for batch in captured if batch["step"] == step]
    assert len(parts) == 2
    rollout, old = (np.concatenate([part[side][part["mask"]] for part in parts]) for side in ("rollout", "old"))
    return rollout.astype(float), old.astype(float)


def test_metrics_in_trls_log_agree_with_the_captured_tensors(run) -> None:
    _, history, captured = run
    logged = [entry for entry in history if "training/rollout_probs_diff_mean" in entry]
    assert [entry["step"] for entry in logged] == [1, 2, 3]
    for entry in logged:
        rollout, old = step_tokens(captured, entry["step"])
        diff, log_ratio = np.abs(np.exp(rollout) - np.exp(old)), old - rollout
        expected = {
            "training/rollout_probs_diff_valid": 1.0,
            "training/rollout_probs_diff_mean": diff.mean(),
            "training/rollout_probs_diff_max": diff.max(),
            "training/rollout_probs_diff_std": diff.std(ddof=1),
            "training/rollout_actor_probs_pearson_corr": np.corrcoef(np.exp(rollout), np.exp(old))[0, 1],
            "mismatch/tokens": float(len(diff)),
            "mismatch/log_ratio_abs_mean": np.abs(log_ratio).mean(),
            "mismatch/log_ratio_abs_max": np.abs(log_ratio).max(),
            "mismatch/k3": (np.expm1(log_ratio) - log_ratio).mean(),
        }
        for name, value in expected.items():
            assert entry[name] == pytest.approx(value, rel=1e-5, abs=2e-7), name


def test_a_bfloat16_engine_on_the_same_weights_looks_like_one(run) -> None:
    """Not 0, since the sides differ; an engine that forgets its context shows 4 nats here."""
    _, history, _ = run
    gaps = [entry["mismatch/log_ratio_abs_mean"] for entry in history if "mismatch/k3" in entry]
    assert all(1e-4 < gap < 0.5 for gap in gaps), gaps


def test_files_hold_the_same_tokens(run) -> None:
    root, _, captured = run
    analysis = analyze_folder(root / "diff")
    assert [step.name.step for step in analysis.steps] == [1, 2, 3]
    for step in analysis.steps:
        rollout, old = step_tokens(captured, step.name.step)
        assert step.summary.moments.count == len(rollout)
        assert step.summary.moments.mean == pytest.approx(np.abs(np.exp(rollout) - np.exp(old)).mean(), abs=1e-6)
    assert analysis.leaked == 0


def test_off_leaves_the_trainer_as_it_was() -> None:
    """Disabled, the subclass adds no key and writes no file."""
    probed = with_probe(trl.GRPOTrainer, ProbeConfig())
    assert probed.__mro__[2] is trl.GRPOTrainer


def test_it_is_the_wheel_that_is_tested() -> None:
    assert Path(ours.__file__).is_relative_to(sys.prefix)
