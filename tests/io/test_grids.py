"""Grids of images."""

import pytest
import torch
from PIL import Image

from anisodiff.io.grids import save_grid


def test_a_grid_is_nearly_square_and_keeps_the_pixels(tmp_path):
    images = torch.linspace(0, 1, 3 * 5)[:, None, None, None].expand(15, 1, 32, 32)
    save_grid(images, tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as grid:
        assert grid.size == (4 * 66 + 2, 4 * 66 + 2)  # each pixel twice, and gaps of two
        assert grid.getpixel((2 + 66 + 3, 2 + 3)) == (18,) * 3  # the second of 15 levels


@pytest.mark.parametrize(
    ("images", "got"),
    [
        ([1, 2], "list of int"), (None, "NoneType"), ([], "list"), (torch.zeros(8, 8), "a tensor [8, 8]"),
        (torch.zeros(2, 8, 8, 3), "a tensor [2, 8, 8, 3]"), ([torch.zeros(3, 8, 8)], "list of Tensor"),
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused_in_one_line(images, got, tmp_path):
    with pytest.raises(ValueError) as caught:
        save_grid(images, tmp_path / "grid.png")
    expected = "expected a tensor [N, C, H, W] in [0, 1], or uint8 arrays [H, W, C]"
    assert str(caught.value) == f"images: got {got}, {expected}"
    assert not list(tmp_path.iterdir())


def test_bytes_in_place_of_unit_values_are_told(tmp_path):
    with pytest.warns(UserWarning, match="divide bytes by 255"):
        save_grid(torch.full((2, 3, 4, 4), 128.0), tmp_path / "white.png")
    with pytest.raises(ValueError, match=r"path: got .*grid', expected a name that ends in \.png"):
        save_grid(torch.zeros(2, 3, 4, 4), tmp_path / "grid")
