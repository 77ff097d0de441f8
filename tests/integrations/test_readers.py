"""Every format and layout reads back to the same tokens, and what was assumed is said."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from logparity.errors import InputError
from logparity.integrations.readers import TokenDump, read_dumps, read_verl_log
from logparity.integrations.readers.aliases import ALIASES
from tests.support.rollouts import PAIRS, rollouts_of_dump

LENGTHS = (5, 1, 7)
PROMPTS = (3, 4, 2)


@pytest.fixture
def truth() -> dict[str, list[np.ndarray]]:
    generator = np.random.default_rng(0)
    rollout = [-generator.random(n).astype(np.float32) - 0.01 for n in LENGTHS]
    masks = [np.ones(n, bool) for n in LENGTHS]
    masks[2][3:5] = False
    return {
        "rollout": rollout,
        "old": [r - generator.normal(0, 0.01, len(r)).astype(np.float32) for r in rollout],
        "mask": masks,
        "ids": [generator.integers(0, 99, p + n) for p, n in zip(PROMPTS, LENGTHS, strict=True)],
    }


def padded(rows: list[np.ndarray], fill: float = 0.0) -> np.ndarray:
    out = np.full((len(rows), max(map(len, rows))), fill, rows[0].dtype)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def only(source: Path) -> TokenDump:
    (dump,) = read_dumps(source)
    return dump


def check(dump: TokenDump, truth: dict[str, list[np.ndarray]]) -> None:
    """Active tokens of every sequence, in order, whatever stands around them."""
    for row in range(len(LENGTHS)):
        mask = dump.response_mask[row]
        np.testing.assert_array_equal(dump.rollout_log_probs[row][mask], truth["rollout"][row][truth["mask"][row]])
        np.testing.assert_array_equal(dump.old_log_probs[row][mask], truth["old"][row][truth["mask"][row]])


@pytest.mark.parametrize("rollout_name", ALIASES["rollout_log_probs"])
@pytest.mark.parametrize("old_name", ALIASES["old_log_probs"])
def test_npz_padded_under_every_alias(tmp_path: Path, truth, rollout_name: str, old_name: str) -> None:
    mask = padded([m.astype(np.int64) for m in truth["mask"]])
    arrays = {rollout_name: padded(truth["rollout"]), old_name: padded(truth["old"], np.nan), "response_mask": mask}
    np.savez(tmp_path / "d.npz", **arrays, step=np.int64(4))
    dump = only(tmp_path / "d.npz")
    check(dump, truth)
    assert dump.step == 4
    assert dump.pairs().mask.sum() == sum(m.sum() for m in truth["mask"])


def test_npz_packed_with_boundaries_and_with_lengths(tmp_path: Path, truth) -> None:
    flat = {
        "rollout_log_probs": np.concatenate(truth["rollout"]),
        "old_log_probs": np.concatenate(truth["old"]),
        "loss_mask": np.concatenate(truth["mask"]),
    }
    np.savez(tmp_path / "a.npz", **flat, cu_seqlens=np.cumsum([0, *LENGTHS]))
    np.savez(tmp_path / "b.npz", **flat, response_lengths=np.asarray(LENGTHS))
    for name in ("a.npz", "b.npz"):
        dump = only(tmp_path / name)
        check(dump, truth)
        assert "layout: packed, 3 sequences" in dump.notes


def whole(rows: list[np.ndarray], *, leading: bool) -> list[np.ndarray]:
    """Log-probs of prompt and response: with a filler 0 in front, or one place early with the filler behind."""
    out = []
    for prompt, row in zip(PROMPTS, rows, strict=True):
        before = np.full(prompt - 1, -3.0, np.float32)
        out.append(np.concatenate([[0.0], before, row] if leading else [before, row, [0.0]]).astype(np.float32))
    return out


@pytest.mark.parametrize("leading", [True, False])
def test_whole_sequences_are_cut_to_the_response_and_the_shift_is_said(tmp_path: Path, truth, leading: bool) -> None:
    """The trainer's side spans prompt and response, the engine's only the response."""
    data = {
        "rollout_log_probs": [r.tolist() for r in truth["rollout"]],
        "log_probs": [r.tolist() for r in whole(truth["old"], leading=leading)],
        "loss_masks": [m.astype(int).tolist() for m in truth["mask"]],
        "tokens": [i.tolist() for i in truth["ids"]],
    }
    torch.save({"rollout_id": 9, "rank": 0, "rollout_data": data}, tmp_path / "d.pt")
    dump = only(tmp_path / "d.pt")
    check(dump, truth)
    assert dump.step == 9
    assert any(("no shift" if leading else "shift of one") in note for note in dump.notes), dump.notes
    assert dump.token_ids is not None
    for ids, full, length in zip(dump.token_ids, truth["ids"], LENGTHS, strict=True):
        np.testing.assert_array_equal(ids, full[len(full) - length :])


def test_miles_debug_dump_with_bfloat16_tensors(tmp_path: Path, truth) -> None:
    data = {
        "rollout_log_probs": [torch.from_numpy(r) for r in truth["rollout"]],
        "log_probs": [torch.from_numpy(r).bfloat16() for r in truth["old"]],
        "loss_masks": [torch.from_numpy(m) for m in truth["mask"]],
    }
    torch.save({"rollout_id": 1, "rollout_data": data}, tmp_path / "d.pt")
    expected = {**truth, "old": [torch.from_numpy(r).bfloat16().float().numpy() for r in truth["old"]]}
    check(only(tmp_path / "d.pt"), expected)


def test_prime_rl_token_export(tmp_path: Path, truth) -> None:
    """One whole sequence a line, filler 0 in front on both sides, null where a value was not finite."""
    lines = []
    for row, prompt in enumerate(PROMPTS):
        old = whole(truth["old"], leading=True)[row].tolist()
        lines.append(
            {
                "step": 3 if row < 2 else 4,
                "rank": 0,
                "micro_step": 0,
                "micro_sequence_idx": row,
                "run_id": None,
                "token_ids": truth["ids"][row].tolist(),
                "loss_mask": [False] * prompt + truth["mask"][row].tolist(),
                "inference_logprobs": [0.0] * prompt + truth["rollout"][row].tolist(),
                "trainer_logprobs": [*old[:-1], None] if row == 0 else old,
            }
        )
    folder = tmp_path / "token_exports" / "step_3"
    folder.mkdir(parents=True)
    (folder / "rank_0.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    first, second = read_dumps(tmp_path)
    assert [first.step, second.step, len(first), len(second)] == [3, 4, 2, 1]
    assert first.keys == ("0_0_0", "0_0_1")
    assert np.isnan(first.old_log_probs[0][-1])
    assert any("no shift" in note for note in first.notes)
    mask = second.response_mask[0]
    np.testing.assert_array_equal(second.old_log_probs[0][mask], truth["old"][2][truth["mask"][2]])


def test_npy_pairs_by_step(tmp_path: Path, truth) -> None:
    for step in (2, 10):
        np.save(tmp_path / f"rollout_log_probs_step_{step}.npy", padded(truth["rollout"]))
        np.save(tmp_path / f"old_log_probs_step_{step}.npy", padded(truth["old"]))
        np.save(tmp_path / f"response_mask_step_{step}.npy", padded(truth["mask"]))
    dumps = list(read_dumps(tmp_path))
    assert [dump.step for dump in dumps] == [2, 10]
    check(dumps[1], truth)


def test_parquet_of_anybody(tmp_path: Path, truth) -> None:
    table = {
        "step": [7, 7, 8],
        "uid": ["a", "b", "c"],
        "sampling_per_token_logps": [r.tolist() for r in truth["rollout"]],
        "old_per_token_logps": [r.tolist() for r in truth["old"]],
        "completion_mask": [[1] * n for n in LENGTHS],
        "tool_mask": [m.astype(int).tolist() for m in truth["mask"]],
        "reward": [0.0, 1.0, 2.0],
    }
    pq.write_table(pa.table(table), tmp_path / "d.parquet")
    first, second = read_dumps(tmp_path / "d.parquet")
    assert first.keys == ("a", "b")
    np.testing.assert_array_equal(second.response_mask[0], truth["mask"][2])


def test_our_own_rollouts(tmp_path: Path) -> None:
    from logparity.probe import write_rollouts

    rollouts, scored = rollouts_of_dump(PAIRS / "clean_vllm_bf16_vs_hf_bf16.npz")
    write_rollouts(tmp_path / "step_5.parquet", 5, rollouts, scored, [0.0] * len(rollouts), [0.0] * len(rollouts))
    dump = only(tmp_path / "step_5.parquet")
    assert dump.step == 5
    assert dump.keys == tuple(r.key for r in rollouts)
    for row, (_, log_probs) in enumerate(scored):
        np.testing.assert_array_equal(dump.old_log_probs[row], log_probs)


def test_mask_of_prompt_and_response_gives_its_last_columns(tmp_path: Path, truth) -> None:
    wide = np.concatenate([np.ones((3, 4), bool), padded(truth["mask"])], axis=1)
    arrays = {"rollout_log_probs": padded(truth["rollout"]), "old_log_probs": padded(truth["old"])}
    np.savez(tmp_path / "d.npz", **arrays, attention_mask=wide)
    dump = only(tmp_path / "d.npz")
    check(dump, truth)
    assert any("last columns" in note for note in dump.notes)


def test_one_value_too_many_is_named(tmp_path: Path, truth) -> None:
    data = {
        "rollout_log_probs": [[*r.tolist(), -0.5] for r in truth["rollout"]],
        "log_probs": [r.tolist() for r in truth["old"]],
        "loss_masks": [m.astype(int).tolist() for m in truth["mask"]],
    }
    torch.save(data, tmp_path / "d.pt")
    with pytest.raises(InputError, match=r"One value more.*end token"):
        only(tmp_path / "d.pt")


def test_missing_side_says_which_names_were_looked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", rollout_log_probs=np.zeros((1, 2)))
    with pytest.raises(InputError, match=r"old_log_probs \| old_per_token_logps.*Both sides"):
        only(tmp_path / "d.npz")


def test_verl_file_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    cell = "training/rollout_probs_diff/s0_p0000"
    path.write_text(json.dumps({"step": 1, "data": {cell: 0.25, "note": "x", "actor/lr": 1e-6}}) + "\n")
    (step,) = read_verl_log(path)
    assert step.step == 1
    assert step.metrics == {cell: 0.25, "actor/lr": 1e-6}
    assert step.skipped == ("note",)
    with pytest.raises(InputError, match="read_verl_log"):
        only(path)
