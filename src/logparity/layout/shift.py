"""The only next-token alignment: which logits row predicts which token.

The logits row at position ``t - 1`` predicts the token at position ``t``. Every other module asks here instead of
slicing by one itself.
"""

from __future__ import annotations

from logparity.errors import InputError


def response_rows(prompt_length: int, response_length: int) -> range:
    """Rows of a sequence's logits that predict its response tokens.

    Response token ``j`` is predicted by row ``prompt_length - 1 + j``. The last position of the sequence predicts
    a token that does not exist and is never among the rows.

    Args:
        prompt_length: ``P``, tokens before the response; >= 1, because a first token has no row that predicts it.
        response_length: ``R``, tokens of the response; 0 gives no rows.

    Returns:
        ``R`` row numbers in ``[0, P + R - 1)``, in the order of the response.

    Raises:
        InputError: the prompt is empty or a length is negative.
    """
    if prompt_length < 1:
        raise InputError(
            f"prompt_length: expected >= 1, got {prompt_length}. No logits row predicts the first token of a sequence: "
            "start the prompt with the tokenizer's beginning-of-sequence token."
        )
    if response_length < 0:
        raise InputError(f"response_length: expected >= 0, got {response_length}.")
    return range(prompt_length - 1, prompt_length - 1 + response_length)


__all__ = ["response_rows"]
