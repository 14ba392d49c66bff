from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from anisodiff.metrics.resize import Preprocess, bicubic, tf1_bilinear


def reference_pixel(image: Tensor, i: int, j: int, height: int, width: int) -> float:
    """The definition, one pixel at a time, in Python numbers."""
    h, w = image.shape
    y, x = i * h / height, j * w / width
    i0, j0 = math.floor(y), math.floor(x)
    i1, j1 = min(i0 + 1, h - 1), min(j0 + 1, w - 1)
    corners = [[float(image[a, b]) for b in (j0, j1)] for a in (i0, i1)]
    rows = [left + (right - left) * (x - j0) for left, right in corners]
    return rows[0] + (rows[1] - rows[0]) * (y - i0)


@pytest.mark.parametrize(
    ("size", "out"), [((5, 7), (12, 9)), ((32, 32), (41, 41)), ((40, 33), (13, 11)), ((6, 6), (6, 6))]
)
def test_agrees_with_the_definition_pixel_by_pixel(size: tuple[int, int], out: tuple[int, int]) -> None:
    image = torch.randint(0, 256, size, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    got = tf1_bilinear(image[None, None], *out)[0, 0]
    expected = [[reference_pixel(image, i, j, *out) for j in range(out[1])] for i in range(out[0])]
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-3, rtol=0)  # float32 positions


def test_real_size_at_chosen_pixels() -> None:
    image = torch.randint(0, 256, (32, 32), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    got = tf1_bilinear(image[None, None], 299, 299)[0, 0]
    for i, j in [(0, 0), (298, 298), (150, 7), (3, 290), (299 // 2, 299 // 3)]:
        assert float(got[i, j]) == pytest.approx(reference_pixel(image, i, j, 299, 299), abs=1e-3)


def test_is_neither_half_pixel_nor_corner_aligned() -> None:
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    got = tf1_bilinear(ramp, 16, 16)[0, 0, 0]
    expected = torch.tensor([i / 2 for i in range(15)] + [7.0])  # clamped only past the last source pixel
    torch.testing.assert_close(got, expected)


def test_same_size_is_the_identity_and_constants_stay() -> None:
    image = torch.randint(0, 256, (2, 3, 9, 11), dtype=torch.uint8)
    assert torch.equal(tf1_bilinear(image, 9, 11), image.float())
    assert torch.equal(tf1_bilinear(torch.full((1, 3, 5, 5), 77), 23, 29), torch.full((1, 3, 23, 29), 77.0))


def test_preprocess_scales_and_describes_itself() -> None:
    image = torch.tensor([0, 128, 255], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    out = Preprocess(size=4)(image)
    assert out.shape == (1, 3, 4, 4)
    assert out[0, :, 0, 0].tolist() == [-1.0, 0.0, 127 / 128]
    assert Preprocess().describe() == "tf1_bilinear 299, (x-128)/128"
    colors = Preprocess(size=224, resize=bicubic, mean=(1, 2, 3), std=(4, 5, 6))
    assert colors.describe() == "bicubic 224, (x-[1 2 3])/[4 5 6]"


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="size must be at least 1"):
        Preprocess(size=0)
    with pytest.raises(ValueError, match="std must be positive"):
        Preprocess(std=(1, 0, 1))
