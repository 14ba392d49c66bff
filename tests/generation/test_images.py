"""What sampling returns: a tensor as any other, which also draws itself; and the seeds it takes."""

import copy
import io

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.generation.images import Images
from anisodiff.generation.reverse import seeds_of
from anisodiff.io.grids import save_grid


@pytest.fixture(scope="module")
def generator(runs):
    return anisodiff.load(runs("heat"), "cpu")


def test_images_draw_themselves(generator, tmp_path):
    images = generator.sample(5, steps=4)
    images.save_grid(tmp_path / "grid.png")
    save_grid(images, tmp_path / "same.png")
    assert (tmp_path / "grid.png").read_bytes() == (tmp_path / "same.png").read_bytes()
    images[1:3].save_grid(tmp_path / "two.png", columns=2)
    with Image.open(tmp_path / "two.png") as two, Image.open(tmp_path / "grid.png") as five:
        assert two.size == (2 * 66 + 2, 66 + 2)  # 8 pixels, shown as 64
        assert five.size == (3 * 66 + 2, 2 * 66 + 2)


def test_images_are_a_tensor(generator):
    """Whatever is computed from them is a plain tensor; they compare, convert and index as one."""
    images = generator.sample(3, steps=4)
    assert isinstance(images, torch.Tensor)
    assert images.shape == (3, 1, 8, 8)
    plain = images.clone()
    for derived in (plain, images + 1, images.mean(), torch.cat([images, images]), images[0], images > 0.5):
        assert type(derived) is torch.Tensor
    assert type(images[[2, 0]]) is Images
    assert type(next(iter(images))) is torch.Tensor
    assert torch.equal(images, plain)
    torch.testing.assert_close(images, plain)
    torch.testing.assert_close(plain, images)
    assert np.array_equal(images.numpy(), plain.numpy())
    assert np.array_equal(np.asarray(images), plain.numpy())
    images[0] = 0.0
    assert not images[0].any()
    assert plain[0].any()


def test_images_are_saved_as_a_tensor(generator):
    """A file of them opens without this package, and where torch unpickles nothing."""
    images, file = generator.sample(2, steps=4), io.BytesIO()
    torch.save({"images": images}, file)
    file.seek(0)
    again = torch.load(file, weights_only=True)["images"]
    assert type(again) is torch.Tensor
    assert torch.equal(again, images)


def test_images_are_copied_and_become_a_parameter(generator):
    images = generator.sample(2, steps=4)
    twin = copy.deepcopy({"images": images})["images"]
    assert type(twin) is Images
    assert torch.equal(twin, images)
    twin.zero_()
    assert images.any()
    module = torch.nn.Module()
    module.images = torch.nn.Parameter(images)
    for held in (module, copy.deepcopy(module)):
        (only,) = held.parameters()
        assert torch.equal(only, images)
        only.square().sum().backward()
        torch.testing.assert_close(only.grad, 2 * images)


def test_every_way_to_images_returns_them(generator):
    states = torch.full((2, 1, 8, 8), 0.5)
    assert isinstance(generator.sample_seeds([4, 1], steps=4), Images)
    assert isinstance(generator.reverse(states, 1.0, seeds=0, steps=4), Images)
    assert isinstance(anisodiff.edit(generator, states, t=1.0, seeds=0, steps=4), Images)


def test_a_torch_generator_is_a_seed(generator):
    """Equal states, equal images; it moves on, so that the next images are others."""
    sampled = [generator.sample(2, seed=torch.Generator().manual_seed(s), steps=4) for s in (1, 1, 2)]
    assert torch.equal(sampled[0], sampled[1])
    assert not torch.equal(sampled[0], sampled[2])
    rng = torch.Generator().manual_seed(1)
    first, second = (generator.sample(2, seed=rng, steps=4) for _ in range(2))
    assert torch.equal(first, sampled[0])
    assert not torch.equal(first, second)


def test_one_seed_stands_for_as_many_as_there_are_images(generator):
    states = torch.full((3, 1, 8, 8), 0.5)
    for run in (
        lambda seeds: generator.reverse(states, 1.0, seeds=seeds, steps=4),
        lambda seeds: anisodiff.edit(generator, states, t=1.0, seeds=seeds, steps=4),
    ):
        assert torch.equal(run(7), run([7, 8, 9]))
        assert torch.equal(run(torch.Generator().manual_seed(1)), run(torch.Generator().manual_seed(1)))
        assert not torch.equal(run(torch.Generator().manual_seed(1)), run(torch.Generator().manual_seed(2)))


def test_seeds():
    assert seeds_of(3, 2) == (3, 4)
    assert seeds_of(np.int64(3), 2) == (3, 4)
    assert seeds_of(range(5), 2) == (0, 1, 2, 3, 4)  # as given: who needs two of them says so
    drawn = seeds_of(torch.Generator().manual_seed(0), 3)
    assert drawn == tuple(range(drawn[0], drawn[0] + 3))
    assert drawn[0] > 2**32  # two generators hardly ever share a seed
    for wrong in (-1, 2**62, 1.5, True, "3", None, torch.tensor([1.5])):
        with pytest.raises(ValueError, match=r"[Ss]eeds? must|got -1|below") as caught:
            seeds_of(wrong, 1)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [[1, 2], range(5), torch.tensor([1, 2]), 1.5, True, None])
def test_sample_takes_one_seed(generator, wrong):
    with pytest.raises(
        ValueError, match=r"seed: got \w+, expected a whole number or .*; sample_seeds takes several$"
    ):
        generator.sample(5, seed=wrong, steps=4)
    assert len(generator.sample(2, seed=np.int64(3), steps=4)) == 2


def test_progress_is_shown_where_it_is_wanted(generator, capsys, monkeypatch):
    """Not elsewhere than on a terminal, unless it is asked for; there from the start on."""
    generator.sample(2, steps=4)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    generator.sample(2, steps=4)
    assert "2 images, network evaluations" in capsys.readouterr().err
    generator.sample(2, steps=4, progress=False)
    assert capsys.readouterr() == ("", "")
