"""Named sizes and their parameter counts, against an independent count of the published architecture."""

import math
from dataclasses import replace

import pytest
import torch

from anisodiff.networks import SIZES, NCSNpp, NCSNppConfig, ncsnpp_config
from tests.support.published_ncsnpp import layout


def count(config: NCSNppConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in NCSNpp(config).parameters())


def block(i: int, o: int, units: int, shortcut: bool) -> int:
    """Two norms, two 3×3 convolutions, the condition's linear map, the 1×1 shortcut."""
    return 2 * i + (9 * i * o + o) + (units * o + o) + 2 * o + (9 * o * o + o) + (i * o + o) * shortcut


def attention(ch: int) -> int:
    return 2 * ch + 4 * (ch * ch + ch)


def cifar10_count(n: int) -> int:
    """nf = 128, widths 128, 256, 256, 256, n blocks, written out level by level."""
    a, b, u = 128, 256, 512
    embedding = (256 * u + u) + (u * u + u)
    first = 9 * 3 * a + a
    down = n * block(a, a, u, False) + block(a, a, u, True) + (9 * 3 * a + a)  # 32², halve, pyramid 3 → 128
    down += block(a, b, u, True) + (n - 1) * block(b, b, u, False) + n * attention(b)  # 16²
    down += block(b, b, u, True) + (9 * a * b + b)  # halve, pyramid 128 → 256
    down += n * block(b, b, u, False) + block(b, b, u, True) + (9 * b * b + b)  # 8², halve, pyramid 256 → 256
    down += n * block(b, b, u, False)  # 4²
    middle = 2 * block(b, b, u, False) + attention(b)
    up = 2 * ((n + 1) * block(2 * b, b, u, True) + block(b, b, u, True))  # 4² and 8², doubled
    up += n * block(2 * b, b, u, True) + block(b + a, b, u, True) + attention(b) + block(b, b, u, True)  # 16²
    up += block(b + a, a, u, True) + n * block(2 * a, a, u, True)  # 32²
    return embedding + first + down + middle + up + 2 * a + (9 * a * 3 + 3)


def test_published_counts() -> None:
    """Exact counts of the architecture of Song et al. 2021, and the rounded figures known of it.

    62.8 M (CIFAR-10) and 107.6 M (deep) are the rounded figures in circulation. The public conversion of the
    LSUN church 256² checkpoint (google/ncsnpp-church-256 on Hugging Face, `diffusion_model.pt`, float32) is a
    file of 263 MB, weights and their names: 65.6 M values of 4 bytes.
    """
    assert count(ncsnpp_config("cifar10")) == cifar10_count(4) == 62_758_787
    assert count(ncsnpp_config("cifar10-deep")) == cifar10_count(8) == 107_586_947
    assert count(ncsnpp_config("celeba64")) == 62_758_787
    lsun = count(ncsnpp_config("lsun256"))
    assert lsun == 65_574_421
    assert 262.0e6 < 4 * lsun < 263.5e6


@pytest.mark.parametrize("name", SIZES)
def test_counts_against_the_published_layout(name: str) -> None:
    """Every tensor of the published layout but the frozen frequencies; RGB, and one channel to two outputs."""
    for config in (ncsnpp_config(name), ncsnpp_config(name, in_channels=1, out_channels=2)):
        assert count(config) == sum(math.prod(shape) for shape in layout(config).values()) - config.nf


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("cifar10", (32, (1, 2, 2, 2), 4, 0.1, "none", "residual")),
        ("cifar10-deep", (32, (1, 2, 2, 2), 8, 0.1, "none", "residual")),
        ("celeba64", (64, (1, 2, 2, 2), 4, 0.1, "none", "residual")),
        ("lsun256", (256, (1, 1, 2, 2, 2, 2, 2), 2, 0.0, "output_skip", "input_skip")),
    ],
)
def test_published_recipes(name: str, recipe: tuple) -> None:
    c = ncsnpp_config(name)
    assert (c.image_size, c.multipliers, c.blocks, c.dropout, c.progressive, c.progressive_input) == recipe
    assert (c.nf, c.attention, c.combine, c.block, c.embedding) == (128, (16,), "sum", "biggan", "fourier")
    assert (c.fir, c.skip_rescale, c.init_scale, c.fourier_scale) == (True, True, 0.0, 16.0)


def test_sizes_for_short_runs() -> None:
    assert count(ncsnpp_config("tiny")) == 3_191_043
    assert count(ncsnpp_config("small")) == 6_807_363
    assert count(ncsnpp_config("base")) == 27_971_715
    assert count(ncsnpp_config("small", in_channels=1, image_size=28)) <= 7_000_000


@pytest.mark.parametrize(
    ("size", "levels", "attention"),
    [
        (28, 3, (14,)),
        (32, 3, (16,)),
        (64, 3, (16,)),
        (96, 4, (12,)),
        (128, 4, (16,)),
        (256, 5, (16,)),
        (30, 2, (15,)),
    ],
)
def test_base_fits_the_image(size: int, levels: int, attention: tuple[int, ...]) -> None:
    config = ncsnpp_config("base", image_size=size)
    assert (config.image_size, config.levels, config.attention) == (size, levels, attention)


@pytest.mark.parametrize("size", [28, 64])
def test_fitted_sizes_run(size: int) -> None:
    config = replace(ncsnpp_config("base", image_size=size, in_channels=1, out_channels=2), nf=8)
    out = NCSNpp(config)(torch.zeros(1, 1, size, size), torch.zeros(1))
    assert out.shape == (1, 2, size, size)


def test_unknown_names_and_sizes() -> None:
    with pytest.raises(ValueError, match=r"unknown NCSN.. 'cifar-10'; did you mean 'cifar10'"):
        ncsnpp_config("cifar-10")
    with pytest.raises(ValueError, match=r"got image_size 64, expected 32 as published; take .small. or .base.$"):
        ncsnpp_config("cifar10", image_size=64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nf": 0}, "nf: got 0"),
        ({"nf": 48}, "nf: got 48, expected a multiple of 32"),
        ({"nf": True}, "nf: got True, expected an integer"),
        ({"multipliers": ()}, "multipliers: got"),
        ({"multipliers": 2}, r"multipliers: got 2, expected a list of integers"),
        ({"multipliers": (1, "a")}, r"multipliers: got \(1, 'a'\), expected a list of integers"),
        ({"multipliers": (1, 1.5)}, r"multipliers: got \(1, 1.5\), expected a list of integers"),
        ({"attention": 16}, r"attention: got 16, expected a list of integers"),
        ({"image_size": 30}, "image_size: got 30, expected a multiple of 8"),
        (
            {"attention": (12,)},
            r"attention: got 12, expected some of the levels' resolutions \(32, 16, 8, 4\)",
        ),
        ({"progressive": "skip"}, "progressive: got 'skip', expected one of"),
        ({"progressive_input": "output_skip"}, "progressive_input: got"),
        ({"combine": "add"}, "combine: got"),
        ({"block": "resnet"}, "block: got"),
        ({"embedding": "learned"}, "embedding: got"),
        ({"fir": "maybe"}, "fir: got 'maybe', expected true or false"),
        ({"skip_rescale": 2}, "skip_rescale: got 2, expected true or false"),
        ({"qk_norm": "yes"}, "qk_norm: got 'yes', expected true or false"),
        ({"dropout": "abc"}, "dropout: got 'abc', expected a number"),
        ({"dropout": 1.0}, "dropout: got 1.0"),
        ({"fourier_scale": 0.0}, "fourier_scale: got"),
        ({"init_scale": -1.0}, "init_scale: got"),
    ],
)
def test_bad_configurations(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NCSNppConfig(**change)


def test_configuration_survives_json() -> None:
    """Lists, as JSON gives them back, become the tuples of an equal configuration."""
    assert NCSNppConfig(multipliers=[1, 2], attention=[16]) == NCSNppConfig(multipliers=(1, 2), attention=(16,))
