"""Tensors in 8 bits."""

import pytest
import torch

from anisodiff.io.eight_bits import quantized, restored


def test_rounding_is_half_a_scale_at_most():
    x = (
        torch.randn(5, 7, 3, 3, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-6, 3, 5)[:, None, None, None]
    )
    x[3] = 0.0
    given = {"conv": x, "bias": torch.randn(5), "count": torch.tensor(3)}
    stored = quantized(given)
    assert stored["conv"].dtype == torch.int8
    assert int(stored["conv"].abs().max()) == 127
    found = restored(stored)
    assert set(found) == set(given)
    assert torch.equal(found["bias"], given["bias"])
    assert torch.equal(found["count"], given["count"])
    limit = 0.5001 * x.flatten(1).abs().amax(1) / 127
    assert ((found["conv"] - x).flatten(1).abs().amax(1) <= limit).all()
    assert torch.equal(found["conv"][3], x[3])
    again = restored(quantized(found))
    torch.testing.assert_close(again["conv"], found["conv"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("change", ["lost", "other rows", "not in 8 bits"])
def test_a_scale_without_its_tensor_is_refused(change):
    stored = quantized({"conv": torch.ones(4, 2)})
    if change == "lost":
        del stored["conv"]
    elif change == "other rows":
        stored["conv:scale"] = torch.ones(3)
    else:
        stored["conv"] = torch.ones(4, 2)
    with pytest.raises(ValueError, match="conv:scale does not fit"):
        restored(stored)
