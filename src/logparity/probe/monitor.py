"""The probe for other people's trainers: one call per batch that copies and returns; the rest happens elsewhere."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from logparity.errors import AlarmError, InputError
from logparity.probe.alarms.watch import Alarm
from logparity.probe.config import ProbeConfig
from logparity.probe.pairs import PROVIDED_BY
from logparity.probe.pipeline import Pipeline
from logparity.probe.snapshot.buffers import BufferPool
from logparity.probe.snapshot.call import Call

logger = logging.getLogger("logparity.probe")

_EXIT_TIMEOUT_S = 30.0


class Probe:
    """Compares rollout and train log-probs of every call, keeps what the store is told to keep, watches for alarms.

    Outside ``config.strict`` nothing is raised, ever. `observe` copies what it is given and hands it to a thread;
    metrics of a step are returned by a later call, and say which step they belong to (``probe/metrics_step``).

    Args:
        config: what to do; disabled, every call returns at once.
    """

    def __init__(self, config: ProbeConfig) -> None:
        self.config = config
        self.run_id = config.run_id or uuid.uuid4().hex
        self._pid = os.getpid()
        self._pipeline: Pipeline | None = None
        self._queue: queue.Queue[_Job | None] = queue.Queue(config.queue_calls)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._failed = self._dropped = self._dropped_since = 0
        self._error: BaseException | None = None
        self._closed = False
        self._pool = BufferPool(5 * (config.queue_calls + 2))

    def __reduce__(self) -> tuple[type[Probe], tuple[ProbeConfig]]:
        return Probe, (self.config,)

    def observe(
        self,
        *,
        step: int,
        rollout_log_probs: Any,
        old_log_probs: Any,
        response_mask: Any = None,
        token_ids: Any = None,
        entropy: Any = None,
        keys: Sequence[object] | None = None,
        versions: Any = None,
        train_version: int | None = None,
        groups: Mapping[str, Sequence[object]] | None = None,
        lengths: Any = None,
        sub_step: int = 0,
    ) -> dict[str, float]:
        """Copy one batch and return the metrics that are ready. The inputs are left as they are.

        Every per-token argument comes in one of four layouts: padded ``[B, R]`` (array or tensor), a sequence of ``B``
        1-D rows, packed ``[N]`` with ``lengths``, or a nested tensor. Tensors may lie on any device, in any dtype.

        Args:
            step: training step.
            rollout_log_probs: nats, as the engine reported them; None entries of lists are counted as missing.
            old_log_probs: nats, of the trainer before the update.
            response_mask: 1 on tokens that the policy generated; wider than ``R``, its last ``R`` columns count; None
                takes every token of rows and packed tokens (padded arrays need it).
            token_ids: ids of the response tokens.
            entropy: of the trainer's distribution, nats.
            keys: ``B`` sample keys, any objects; their ``str`` identifies a sample. None takes row numbers.
            versions: version of the weights that sampled, per sample ``[B]`` or per token.
            train_version: version of the weights that scored; the lag is ``train_version - versions``.
            groups: group key to ``B`` labels, e.g. ``{"env": [...], "data_source": [...]}``.
            lengths: tokens of each of ``B`` packed rows.
            sub_step: optimisation sub-step; calls of one step and sub-step are one unit and add up.

        Returns:
            Metrics, finite values only: of this unit so far without a background thread; with one, of the last unit
            that was completed since the last call, or none.

        Raises:
            InputError: in strict mode, the arguments do not belong together.
            OSError: in strict mode, the files cannot be written.
            AlarmError: where alarms are strict, one has fired.
        """
        if not self.config.enabled or self._closed or os.getpid() != self._pid:
            return {}
        self._raise_alarms()
        tokens = {
            "rollout_log_probs": rollout_log_probs,
            "old_log_probs": old_log_probs,
            "response_mask": response_mask,
            "token_ids": token_ids,
            "entropy": entropy,
        }
        try:
            self._require(tokens)
            if self.config.background and self._queue.full():
                self._drop()
                return self._ready(step)
            call = Call.capture(step, sub_step, tokens, keys, versions, train_version, groups, lengths, self._pool)
            self._hand_over(call)
        except Exception as error:  # a monitor that stops the run it watches is worse than none
            self._fail(error, step)
        return self._ready(step)

    def flush(self, timeout_s: float = 60.0) -> dict[str, float]:
        """Complete the open unit, wait for all work, and return the latest metrics.

        Args:
            timeout_s: how long to wait at most.

        Returns:
            As `observe`.

        Raises:
            AlarmError: where alarms are strict, one has fired.
        """
        if not self.config.enabled or os.getpid() != self._pid:
            return {}
        try:
            if self._thread is not None:
                done = threading.Event()
                self._queue.put(_Job(None, 0, done), timeout=timeout_s)
                done.wait(timeout_s)
            elif self._pipeline is not None:
                self._pipeline.finish()
        except Exception as error:
            self._fail(error, None)
        ready = self._ready(None)
        self._raise_alarms()
        return ready

    def complete(self) -> None:
        """Complete the open unit and wait for nothing: a later call returns its metrics."""
        if not self.config.enabled or os.getpid() != self._pid:
            return
        if self._thread is not None:
            with contextlib.suppress(queue.Full):  # then the next unit completes this one
                self._queue.put_nowait(_Job(None, 0, None))
            return
        try:
            if self._pipeline is not None:
                self._pipeline.finish()
        except Exception as error:
            self._fail(error, None)

    def close(self) -> None:
        """Complete the open unit, write it, and stop the thread; safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        try:
            self.flush(_EXIT_TIMEOUT_S)
        finally:
            self._closed = True
            if self._thread is not None:
                self._queue.put(None, timeout=_EXIT_TIMEOUT_S)
                self._thread.join(_EXIT_TIMEOUT_S)
            if self._pipeline is not None:
                self._pipeline.close()

    def _hand_over(self, call: Call) -> None:
        if not self.config.background:
            self._run(_Job(call, 0, None))
            return
        if self._thread is None:
            self._start()
        dropped, self._dropped_since = self._dropped_since, 0
        self._queue.put_nowait(_Job(call, dropped, None))

    def _start(self) -> None:
        self._thread = threading.Thread(target=_work, args=(self._queue, weakref.ref(self)), daemon=True)
        self._thread.name = "logparity-probe"
        self._thread.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    def _run(self, job: _Job) -> None:
        with self._lock:
            if self._pipeline is None:
                self._pipeline = Pipeline(self.config, self.run_id)
            if job.call is None:
                self._pipeline.finish()
            else:
                try:
                    self._pipeline.call(job.call, job.dropped)
                finally:
                    job.call.lease.release()

    def _work_on(self, job: _Job) -> None:
        try:
            self._run(job)
        except Exception as error:
            if self.config.strict:
                self._error = error
            self._count_failure(error, None if job.call is None else job.call.step)
        finally:
            if job.done is not None:
                job.done.set()

    def _ready(self, step: int | None) -> dict[str, float]:
        error, self._error = self._error, None
        if error is not None:
            raise error
        pipeline = self._pipeline
        values: dict[str, float] = {}
        if pipeline is not None:
            while pipeline.completed:  # the other thread may add to it meanwhile
                values = dict(pipeline.completed.popleft())
            if not self.config.background and step is not None:
                values = pipeline.so_far()
        if values and step is not None:
            values["probe/steps_late"] = float(step) - values["probe/metrics_step"]
        for name, count in (("failed_calls", self._failed), ("dropped_calls", self._dropped)):
            if count:
                values[f"probe/{name}"] = float(count)
        return values

    def _raise_alarms(self) -> None:
        if not self.config.alarms.strict or self._pipeline is None:
            return
        begun: list[Alarm] = []
        while self._pipeline.begun:
            begun.append(self._pipeline.begun.popleft())
        if begun:
            raise AlarmError("; ".join(alarm.sentence for alarm in begun) + ".")

    def _require(self, tokens: Mapping[str, Any]) -> None:
        missing = [name for name in ("rollout_log_probs", "old_log_probs") if tokens[name] is None]
        if missing:
            raise InputError("; ".join(f"{name}: expected values, got None. {PROVIDED_BY[name]}" for name in missing))

    def _drop(self) -> None:
        self._dropped += 1
        self._dropped_since += 1
        self._say("dropped", "the writer is slower than the trainer: calls are dropped and counted")

    def _fail(self, error: Exception, step: int | None) -> None:
        if self.config.strict:
            raise error
        self._count_failure(error, step)

    def _count_failure(self, error: Exception, step: int | None) -> None:
        self._failed += 1
        where = "" if step is None else f"a call of step {step}: "
        self._say(f"failed {type(error).__name__}", f"{where}{type(error).__name__}: {error}; training goes on")

    def _say(self, kind: str, message: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            logger.warning("Probe: %s", message)


class _Job:
    """A call to add, or (call is None) the wish to complete the open unit."""

    __slots__ = ("call", "done", "dropped")

    def __init__(self, call: Call | None, dropped: int, done: threading.Event | None) -> None:
        self.call, self.dropped, self.done = call, dropped, done


def _work(jobs: queue.Queue[_Job | None], owner: weakref.ref[Probe]) -> None:
    # The thread holds the probe weakly: a probe that nobody holds any more ends it.
    while True:
        try:
            job = jobs.get(timeout=1.0)
        except queue.Empty:
            if owner() is None:
                return
            continue
        probe = owner()
        if job is None or probe is None:
            return
        probe._work_on(job)
        del probe, job


def _close_at_exit(owner: weakref.ref[Probe]) -> None:
    probe = owner()
    if probe is not None:
        try:
            probe.close()
        except Exception as error:
            logger.warning("Probe: not closed cleanly (%s: %s)", type(error).__name__, error)


__all__ = ["Probe"]
