"""From a configuration to the parts of a run: engine, actor, tokenizer, prompts, reward, probe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from logparity.actors.base import Actor, Critic
from logparity.errors import ConfigError
from logparity.models import check_model_folder, prepare_smollm2
from logparity.probe import ProbeConfig, TokenProbe
from logparity.records import Rollout, SamplingSettings
from logparity.rollout import HFRolloutEngine
from logparity.rollout.base import RolloutEngine
from logparity.training.config import EMBEDDED_MODEL, TaskConfig, TrainConfig
from logparity.training.probe_folder import probe_folder
from logparity.training.rewards import Reward, find_reward
from logparity.training.tasks import Prompt, arithmetic_prompts, digits_prompts, read_prompts
from logparity.training.text import Codec
from logparity.training.trainers import build_trainers
from logparity.training.view import View
from logparity.training.world import World


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step works with.

    Args:
        engine: samples responses; None where nothing is sampled (SFT), and on ranks that do not drive.
        actor: scores and trains.
        critic: predicts returns; None but for PPO.
        codec: text to ids and back.
        prompts: the prompt set.
        reward: scores a response.
        sampling: how tokens are drawn.
        probe: compares both sides; None when switched off, and on ranks that do not drive.
    """

    engine: RolloutEngine | None
    actor: Actor
    critic: Critic | None
    codec: Codec
    prompts: tuple[Prompt, ...]
    reward: Reward
    sampling: SamplingSettings
    probe: TokenProbe | None

    @property
    def sampler(self) -> RolloutEngine:
        """The engine, where there has to be one."""
        if self.engine is None:
            raise ConfigError("this rank or algorithm has no rollout engine: only the driver of an RL run samples.")
        return self.engine

    def with_text(self, rollout: Rollout) -> Rollout:
        """The rollout with its response decoded, where the engine did not do it."""
        return rollout if rollout.text is not None else replace(rollout, text=self.codec.decode(rollout.response_ids))


def assemble(config: TrainConfig, world: World, view: View) -> Parts:
    """Build every part; cheap checks come before anything heavy is loaded.

    Args:
        config: resolved configuration.
        world: the processes of the run; only the driver samples and compares.
        view: told what takes long.

    Returns:
        The parts, ready for the first step.

    Raises:
        LogparityError: a prompt set, reward, or model cannot be used, or prompts and responses do not fit the model.
    """
    prompts = prompt_set(config.task, config.run.seed)
    if config.algorithm.name == "sft":
        _require_answers(prompts)
    reward = find_reward(config.reward)
    folder = _model_folder(config.model, view)
    checked = check_model_folder(folder)
    codec = Codec(folder)
    _require_context(prompts, codec, config.rollout.max_new_tokens, checked.context_length)
    stop = tuple(dict.fromkeys((*checked.stop_token_ids, *codec.stop_token_ids)))
    view.message(f"loading {folder}")
    actor, critic = build_trainers(config, folder)
    return Parts(
        engine=_engine(config, folder) if world.is_driver else None,
        actor=actor,
        critic=critic,
        codec=codec,
        prompts=prompts,
        reward=reward,
        sampling=SamplingSettings(
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
            min_p=config.rollout.min_p,
            max_new_tokens=config.rollout.max_new_tokens,
            stop_token_ids=stop,
        ),
        probe=_probe(config) if world.is_driver else None,
    )


def prompt_set(config: TaskConfig, seed: int) -> tuple[Prompt, ...]:
    """The prompts that a configuration names.

    Args:
        config: embedded set or file.
        seed: run seed; decides generated prompts.

    Returns:
        At least one prompt.

    Raises:
        ConfigError: the file is missing, empty, or malformed.
    """
    if config.file is not None:
        return read_prompts(config.file)
    return digits_prompts() if config.name == "digits" else arithmetic_prompts(config.size, seed)


def _model_folder(model: str, view: View) -> Path:
    if model != EMBEDDED_MODEL:
        return Path(model)
    view.message("preparing the embedded model (once per machine)")
    return prepare_smollm2()


def _require_context(prompts: tuple[Prompt, ...], codec: Codec, new_tokens: int, context: int | None) -> None:
    if context is None:
        return
    length, key = max((len(codec.encode(prompt.text)), prompt.key) for prompt in prompts)
    if length + new_tokens > context:
        raise ConfigError(
            f"rollout.max_new_tokens = {new_tokens}: prompt {key!r} has {length} tokens and the model's context is "
            f"{context}. Set rollout.max_new_tokens to at most {max(context - length, 0)}, or shorten the prompt."
        )


def _require_answers(prompts: tuple[Prompt, ...]) -> None:
    missing = [prompt.key for prompt in prompts if not prompt.answer]
    if missing:
        raise ConfigError(
            f"algorithm.name = 'sft' learns the answers of the task: {len(missing)} of {len(prompts)} prompts have "
            f"none, the first {missing[0]!r}. Set task.name = 'arithmetic' or a task.file with answers."
        )


def _engine(config: TrainConfig, folder: Path) -> HFRolloutEngine | None:
    if config.algorithm.name == "sft":
        return None
    return HFRolloutEngine(
        folder,
        dtype=config.rollout.dtype,
        log_prob_mode=config.rollout.log_prob_mode,
        batch_size=config.rollout.batch_size,
    )


def _probe(config: TrainConfig) -> TokenProbe | None:
    if not config.probe.enabled:
        return None
    return TokenProbe(
        ProbeConfig(
            enabled=True,
            save_dir=probe_folder(config),
            token_max_print=config.probe.token_max_print,
            sample_max_print=config.probe.sample_max_print,
        )
    )
