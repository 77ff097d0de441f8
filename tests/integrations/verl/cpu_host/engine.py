"""A rollout engine for verl: a transformers model in a Ray actor, one sequence at a time, weights pushed each step."""

from __future__ import annotations

import asyncio
import os

import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "transformers_cpu"


class Server:
    """Samples, and reports the log-prob of what it sampled under the temperature it was given."""

    def __init__(self, path: str, dtype: str, length: int) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        self.stop = AutoTokenizer.from_pretrained(path).eos_token_id
        self.length, self.steps, self.busy = length, None, asyncio.Lock()
        self.draws = torch.Generator().manual_seed(0)

    async def load(self, weights: dict[str, torch.Tensor], steps: int | None) -> None:
        """Take the trainer's weights."""
        self.model.load_state_dict(weights, strict=False)
        self.steps = steps

    async def generate(self, prompt_ids, sampling_params, request_id, **_) -> TokenOutput:
        """One response."""
        async with self.busy:
            found = await asyncio.to_thread(self._sample, list(prompt_ids), sampling_params)
        log_probs = found[1] if sampling_params.get("logprobs") else None
        extra = {"global_steps": self.steps}
        return TokenOutput(token_ids=found[0], log_probs=log_probs, stop_reason="completed", extra_fields=extra)

    @torch.no_grad()
    def _sample(self, prompt: list[int], sampling_params) -> tuple[list[int], list[float]]:
        ids, log_probs, cache, given = [], [], None, torch.tensor([prompt])
        while len(ids) < self.length and (not ids or ids[-1] != self.stop):
            output = self.model(given, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            row = (output.logits[0, -1].float() / (sampling_params.get("temperature") or 1.0)).log_softmax(-1)
            ids.append(int(torch.multinomial(row.exp(), 1, generator=self.draws)))
            log_probs.append(float(row[ids[-1]]))
            given = torch.tensor([[ids[-1]]])
        return ids, log_probs

    async def idle(self, *_, **__) -> None:
        """All that a server with a cache and a sleep mode would have to do."""

    wake_up = sleep = abort_all_requests = resume_generation = clear_kv_cache = idle
    release_kv_cache = resume_kv_cache = start_profile = stop_profile = idle


def actor_name(rank: int | str) -> str:
    """Name of a replica's actor."""
    return f"{NAME}_{rank}"


class Replica(RolloutReplica):
    """Starts one server."""

    async def launch_servers(self) -> None:
        model = self.model_config
        path = model.get("path") if hasattr(model, "get") else model.path
        options = {"name": actor_name(self.replica_rank), "num_cpus": 0, "max_concurrency": 64}
        server = ray.remote(Server).options(**options).remote(path, str(self.config.dtype), self.config.response_length)
        await server.idle.remote()
        self.servers, self._server_handle, self._server_address = [server], server, actor_name(self.replica_rank)


class Adapter(base.BaseRollout):
    """The trainer's end: pushes weights."""

    async def resume(self, tags) -> None:
        """Nothing sleeps."""

    async def release(self) -> None:
        """Nothing sleeps."""

    async def update_weights(self, weights, wire_format="named_tensors", global_steps=None, **_) -> None:
        """Send copies to the server of this rank."""
        named = {name: weight.detach().cpu().clone() for name, weight in weights}
        await ray.get_actor(actor_name(os.environ.get("RANK", "0"))).load.remote(named, global_steps)


RolloutReplicaRegistry.register(NAME, lambda: Replica)
base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.Adapter"
