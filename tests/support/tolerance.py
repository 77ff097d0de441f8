"""The numbers contract: how far a result may be from float64."""

from __future__ import annotations

import torch
from torch import Tensor

GRADIENT_FLOOR = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-7, torch.float16: 2e-7}
"""Absolute error that a gradient of this dtype may have where one unit in the last place is less."""


def assert_log_probs_close(got: Tensor, exact: Tensor) -> None:
    """Within 2e-6 absolute for |log_prob| <= 1 and 2e-6 relative beyond; infinities and NaN at the same places."""
    same = (got == exact) | (got.isnan() & exact.isnan())
    error = (got.double() - exact).abs() / exact.abs().clamp(min=1.0)
    worst = error.masked_fill(same, 0.0).nan_to_num(nan=torch.inf)
    assert worst.numel() == 0 or worst.max() <= 2e-6, f"log-probs off by {worst.max():.3g}, allowed 2e-6"


def assert_entropy_close(got: Tensor, exact: Tensor) -> None:
    same = got.isnan() & exact.isnan()
    worst = (got.double() - exact).abs().masked_fill(same, 0.0).nan_to_num(nan=torch.inf)
    assert worst.numel() == 0 or worst.max() <= 1e-5, f"entropy off by {worst.max():.3g} nats, allowed 1e-5"


def assert_gradients_close(got: Tensor, exact: Tensor) -> None:
    """Within one unit in the last place of the gradient's dtype, or an absolute floor."""
    allowed = torch.maximum(_unit_in_last_place(exact, got.dtype), torch.tensor(GRADIENT_FLOOR[got.dtype]))
    excess = ((got.double() - exact).abs() / allowed).masked_fill(got.isnan() & exact.isnan(), 0.0)
    worst = excess.nan_to_num(nan=torch.inf)
    assert worst.numel() == 0 or worst.max() <= 1.0, f"gradient off by {worst.max():.3g} times what is allowed"


def assert_same_bits(got: Tensor, expected: Tensor) -> None:
    """Equal to the last bit, signs of zeros included."""
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    as_int = {2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    differ = got.contiguous().view(as_int) != expected.contiguous().view(as_int)
    assert not differ.any(), f"{int(differ.sum())} of {differ.numel()} values differ in bits"


def _unit_in_last_place(values: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(values.abs().clamp(min=info.smallest_normal))
    return torch.ldexp(torch.full_like(values, info.eps), exponent - 1)
