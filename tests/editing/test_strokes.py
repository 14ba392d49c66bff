"""Strokes: k-means with known answers, the same for every order of the pixels."""

import pytest
import torch

from anisodiff.editing import strokes
from anisodiff.editing.strokes import kmeans, mode_filter
from anisodiff.io.images import sample_photo

F64 = torch.float64


def colors(image: torch.Tensor) -> torch.Tensor:
    """The distinct colors, [K, C]."""
    return torch.unique(image.flatten(1), dim=1).mT


@pytest.fixture(scope="module")
def photo() -> torch.Tensor:
    return sample_photo(48)


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_exactly_so_many_colors_each_the_mean_of_its_pixels(photo, count):
    made = strokes(photo, count)
    assert made.shape == photo.shape
    assert made.dtype == photo.dtype
    palette = colors(made)
    assert len(palette) == count
    for color in palette:
        here = (made == color[:, None, None]).all(0)
        torch.testing.assert_close(photo[:, here].mean(1), color, rtol=0, atol=1e-6)
    # every pixel has the nearest of the colors
    distance = torch.cdist(photo.flatten(1).mT.double(), palette.double())
    own = (photo - made).double().square().sum(0).sqrt().flatten()
    torch.testing.assert_close(own, distance.min(1).values, rtol=0, atol=1e-6)


def test_more_colors_are_nearer_to_the_photograph(photo):
    errors = [float((strokes(photo, k) - photo).square().mean()) for k in (1, 2, 4, 8, 16, 32)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02 * errors[0]


def test_depends_on_the_seed_alone_and_not_on_the_order_of_the_pixels(photo):
    made = strokes(photo, 6, seed=3)
    torch.manual_seed(99)
    torch.testing.assert_close(strokes(photo, 6, seed=3), made, rtol=0, atol=0)
    order = torch.randperm(48 * 48, generator=torch.Generator().manual_seed(0))
    shuffled = strokes(photo.flatten(1)[:, order].reshape(photo.shape), 6, seed=3)
    torch.testing.assert_close(shuffled.flatten(1), made.flatten(1)[:, order], rtol=0, atol=0)
    torch.testing.assert_close(strokes(photo.flip(2), 6, seed=3), made.flip(2), rtol=0, atol=0)


def test_finds_clusters_that_are_there():
    noise = torch.Generator().manual_seed(0)
    centers = torch.tensor([[0.1, 0.2, 0.3], [0.8, 0.1, 0.2], [0.5, 0.9, 0.6], [0.2, 0.3, 0.9]], dtype=F64)
    label = torch.randint(0, 4, (20, 30), generator=noise)
    image = centers[label].permute(2, 0, 1) + 0.01 * torch.randn(3, 20, 30, dtype=F64, generator=noise)
    made = strokes(image, 4)
    torch.testing.assert_close(made, centers[label].permute(2, 0, 1), rtol=0, atol=5e-3)


def test_a_painting_of_few_colors_comes_back(photo):
    painting = strokes(photo, 4)
    torch.testing.assert_close(strokes(painting, 4), painting, rtol=0, atol=1e-6)
    torch.testing.assert_close(strokes(painting, 9), painting, rtol=0, atol=0)


def test_multiplicities_count_as_repeated_points():
    points = torch.tensor([[0.0], [0.1], [1.0]], dtype=F64)
    centers = kmeans(points, torch.tensor([3.0, 1.0, 5.0], dtype=F64), 2)
    torch.testing.assert_close(centers.sort(0).values, torch.tensor([[0.025], [1.0]], dtype=F64))


def test_position_holds_strokes_together(photo):
    def pieces(made: torch.Tensor) -> int:
        """Borders between strokes."""
        return int((made[:, 1:] != made[:, :-1]).any(0).sum() + (made[:, :, 1:] != made[:, :, :-1]).any(0).sum())

    counts = [pieces(strokes(photo, 8, position=w)) for w in (0.0, 0.5, 4.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[2] < 0.7 * counts[0]
    smoothed = [pieces(strokes(photo, 8, smooth=r)) for r in (0, 1, 2)]
    assert smoothed == sorted(smoothed, reverse=True)
    assert smoothed[2] < 0.7 * smoothed[0]
    assert len(colors(strokes(photo, 8, smooth=2))) <= 8


def test_the_mode_filter_takes_the_majority():
    label = torch.zeros(5, 6, dtype=torch.int64)
    label[:, 3:] = 1
    speck = label.clone()
    speck[2, 1] = 2
    assert torch.equal(mode_filter(speck, 3, 1), label)
    assert torch.equal(mode_filter(label, 3, 1), label)  # a straight border is a tie that stays


def test_mistakes_are_named(photo):
    mistakes = [
        (lambda: strokes(photo, 0), "got 0 colors"),
        (lambda: strokes(photo[None]), "expected one image"),
        (lambda: strokes((photo * 255).to(torch.uint8)), "of floats"),
        (lambda: strokes(photo / 0), "NaN or infinite"),
        (lambda: strokes(photo, 4, smooth=-1), "smooth: got -1"),
        (lambda: strokes(photo, 4, position=float("nan")), "position: got nan"),
    ]
    for call, says in mistakes:
        with pytest.raises(ValueError, match=says):
            call()
