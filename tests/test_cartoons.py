"""Filters that keep edges and take texture away: limits, known answers, the notation."""

import pytest
import torch
from scipy import ndimage

from anisodiff.cartoons import KINDS, Bilateral, Median, PeronaMalik, read_filter
from anisodiff.dct import dct2, frequencies, idct2
from tests.support.oracles import F64, gaussian_images


def step_with_grain() -> torch.Tensor:
    """A step of 0.6 in the middle, with grain of 0.02, [1, 1, 16, 16]."""
    x = torch.full((1, 1, 16, 16), 0.2, dtype=F64)
    x[..., 8:] = 0.8
    return x + 0.02 * torch.randn(x.shape, dtype=F64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "text", ["perona-malik(smoothing=4)", "bilateral(radius=3, space=3, color=0.1)", "median(radius=2)"]
)
def test_edges_stay_and_grain_goes(text):
    x = step_with_grain()
    made = read_filter(text, "filter")(x)
    assert made.shape == x.shape
    sides = made[..., :6], made[..., 10:]
    assert max(float(side.std()) for side in sides) < 0.5 * 0.02
    assert float(made[..., 8].mean() - made[..., 7].mean()) > 0.5


@pytest.mark.parametrize("text", list(KINDS))
def test_flat_images_and_shifts(text):
    """A flat image stays; samples do not mix; adding a constant adds it."""
    filter_ = read_filter(text, "filter")
    flat = torch.full((2, 3, 9, 7), 0.3, dtype=F64)
    torch.testing.assert_close(filter_(flat), flat, rtol=0, atol=1e-7)
    x = torch.rand(2, 3, 9, 7, dtype=F64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(filter_(x)[1:], filter_(x[1:]))
    torch.testing.assert_close(filter_(x + 0.1), filter_(x) + 0.1, rtol=0, atol=1e-7)


def test_perona_malik_without_edges_is_the_heat_equation():
    x = gaussian_images(3, 8)
    z = frequencies(8, 8, F64, x.device)
    torch.testing.assert_close(
        PeronaMalik(smoothing=1.7, edge=float("inf"))(x), idct2(torch.exp(-1.7 * z) * dct2(x)), rtol=0, atol=1e-6
    )


def test_bilateral_limits():
    """Any color: the Gaussian mean. Colors that must agree: nothing changes."""
    x = torch.rand(1, 1, 12, 12, dtype=F64, generator=torch.Generator().manual_seed(2))
    place = torch.arange(-2, 3, dtype=F64)
    row = torch.exp(-place.square() / 2)
    kernel = torch.outer(row, row) / row.sum() ** 2
    want = ndimage.correlate(x[0, 0].numpy(), kernel.numpy(), mode="nearest")
    blurred = Bilateral(radius=2, space=1.0, color=float("inf"))(x)
    torch.testing.assert_close(blurred[0, 0], torch.from_numpy(want))
    apart = (torch.arange(144, dtype=F64).reshape(1, 1, 12, 12) / 144)[..., torch.randperm(12)]
    torch.testing.assert_close(Bilateral(radius=2, color=1e-3)(apart), apart, rtol=0, atol=1e-4)


def test_median_is_the_median():
    x = torch.rand(2, 2, 9, 8, dtype=F64, generator=torch.Generator().manual_seed(3))
    want = ndimage.median_filter(x.numpy(), size=(1, 1, 5, 5), mode="nearest")
    torch.testing.assert_close(Median(radius=2)(x), torch.from_numpy(want))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("median(radius=0)", "radius: got 0, expected a whole number from 1 to 16"),
        ("bilateral(color=0)", "color: got 0, expected a number, 0.001 or more"),
        ("perona-malik(smoothing=-1)", "smoothing: got -1, expected a number from 1e-06"),
        ("perona-malik(edg=1)", "did you mean 'edge'"),
        ("medain", "did you mean 'median'"),
    ],
)
def test_notation(text, words):
    for kind in KINDS:
        made = read_filter(kind, "filter")
        assert read_filter(str(made), "filter") == made == read_filter(made, "filter")
    with pytest.raises(ValueError, match=words):
        read_filter(text, "filter")
