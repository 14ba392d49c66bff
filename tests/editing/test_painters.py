"""Paintings: flat drawings, cartoons, and the notation they share with strokes."""

import pytest
import torch
from scipy import ndimage

from anisodiff.editing import read_paint, strokes
from anisodiff.editing.inputs import Painter
from anisodiff.editing.painters import KINDS, Flat, Strokes


def photo(seed: int = 0) -> torch.Tensor:
    """A color picture of 16×16: two halves, noise, and a lone pixel."""
    x = torch.zeros(3, 16, 16)
    x[0, :, 8:], x[2, :, :8] = 0.9, 0.8
    x = (x + 0.1 * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed))).clamp(0, 1)
    x[:, 4, 4] = 1.0
    return x


def smallest_region(image: torch.Tensor) -> int:
    colors, index = torch.unique(image.flatten(1), dim=1, return_inverse=True)
    index = index.reshape(image.shape[-2:])
    sizes = []
    for value in range(colors.shape[1]):
        regions, count = ndimage.label((index == value).numpy())
        sizes += [int((regions == k).sum()) for k in range(1, count + 1)]
    return min(sizes)


@pytest.mark.parametrize(("colors", "area"), [(2, 4), (5, 10), (8, 16), (8, 200)])
def test_a_flat_drawing_has_few_colors_and_no_small_region(colors, area):
    drawn = Flat(colors=colors, area=area)(photo())
    assert drawn.shape == (3, 16, 16)
    assert torch.unique(drawn.flatten(1), dim=1).shape[1] <= colors
    assert smallest_region(drawn) >= min(area, 256)
    assert not torch.equal(drawn[:, 4, 4], torch.ones(3))  # the lone pixel has gone
    assert torch.equal(drawn, Flat(colors=colors, area=area)(photo()))


def test_regions_keep_their_colors():
    """Colors of a flat drawing are those of the strokes; a picture without small regions stays as it is."""
    made, painted = Flat(colors=6, area=12)(photo()), strokes(photo(), 6)
    known = {tuple(c.tolist()) for c in painted.flatten(1).mT}
    assert {tuple(c.tolist()) for c in made.flatten(1).mT} <= known
    halves = torch.zeros(3, 16, 16)
    halves[:, :, 8:] = 1.0
    assert torch.equal(Flat(colors=4, area=16)(halves), halves)


@pytest.mark.parametrize("kind", list(KINDS))
def test_notation_and_range(kind):
    paint = read_paint(kind)
    assert read_paint(str(paint)) == paint
    made = paint(photo())
    assert made.shape == (3, 16, 16)
    assert 0 <= float(made.min()) <= float(made.max()) <= 1
    assert Painter(paint=paint).description == (
        "k-means, 8 colors, position 0, smooth 0" if kind == "strokes" else str(paint)
    )


def test_strokes_are_the_strokes():
    assert torch.equal(read_paint("strokes(colors=3, smooth=1)")(photo()), strokes(photo(), 3, smooth=1))
    assert read_paint("strokes(5)") == Strokes(colors=5)
    for text, words in (
        ("flat(area=0)", "area: got 0, expected a whole number, 1 or more"),
        ("flat(colors=2.5)", "colors: got 2.5, expected a whole number"),
        ("fat", "did you mean 'flat'"),
    ):
        with pytest.raises(ValueError, match=words):
            read_paint(text, "--paint")
