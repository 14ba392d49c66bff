"""Resampling against dense filters, its adjoint and its exact values on constants."""

import pytest
import torch
from torch.nn import functional as F

from anisodiff.networks.resample import DownConv, UpConv, downsample, fir2d, upsample
from tests.support.published_ncsnpp import down, down_conv, up, up_conv


def image(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("fir", [True, False])
def test_against_interleaved_zeros_and_dense_filters(fir: bool) -> None:
    x = image(2, 3, 6, 10)
    torch.testing.assert_close(downsample(x, fir=fir), down(x, fir), rtol=0, atol=1e-14)
    torch.testing.assert_close(upsample(x, fir=fir), up(x, fir), rtol=0, atol=1e-14)


@pytest.mark.parametrize("fir", [True, False])
def test_up_is_four_times_the_adjoint_of_down(fir: bool) -> None:
    """⟨↑x, y⟩ = 4⟨x, ↓y⟩: both are one filter, each seen from the other grid."""
    x, y = image(1, 2, 4, 6), image(1, 2, 8, 12)
    assert torch.allclose((upsample(x, fir=fir) * y).sum(), 4 * (x * downsample(y, fir=fir)).sum(), rtol=1e-13)


def test_fir_by_hand() -> None:
    """One row of ones: the interior stays 1, and the edge loses the tap that falls on the zeros outside."""
    x = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    edge = torch.tensor([7 / 8, 1.0, 1.0, 7 / 8], dtype=torch.float64)
    assert torch.equal(downsample(x, fir=True)[0, 0], torch.outer(edge, edge))
    edge = torch.tensor([0.75, 1, 1, 1, 1, 0.75], dtype=torch.float64)
    assert torch.equal(upsample(x[..., :3, :3], fir=True)[0, 0], torch.outer(edge, edge))
    impulse = torch.zeros(1, 1, 1, 5, dtype=torch.float64)
    impulse[..., 2] = 1
    assert fir2d(F.pad(impulse, (0, 0, 1, 1)), (1.0, 2.0, 4.0), pad=(0, 0))[0, 0, 0].tolist() == [8, 4, 2]


@pytest.mark.parametrize("fir", [True, False])
def test_convolutions_that_resample(fir: bool) -> None:
    x = image(2, 3, 6, 8)
    for layer, reference in ((DownConv(3, 5, fir=fir), down_conv), (UpConv(3, 5, fir=fir), up_conv)):
        layer.double().draw(torch.Generator().manual_seed(1))
        with torch.no_grad():
            layer.bias.copy_(torch.arange(5))
            expected = reference(x, layer.weight, layer.bias, fir)
            torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


def test_channels_last_survives() -> None:
    x = image(2, 4, 6, 8).to(memory_format=torch.channels_last)
    for y in (upsample(x, fir=True), downsample(x, fir=True)):
        assert y.is_contiguous(memory_format=torch.channels_last)


def test_too_small_for_the_filter() -> None:
    with pytest.raises(ValueError, match="expected at least 4"):
        fir2d(image(1, 1, 3, 3), (1.0, 3.0, 3.0, 1.0), pad=(0, 0))
