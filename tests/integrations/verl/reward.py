"""A reward for a run that is not about reward."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return {"score": float(ground_truth in solution_str) + 0.001 * (len(solution_str) % 7), "acc": 0.0}
