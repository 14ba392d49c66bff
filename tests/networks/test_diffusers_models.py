"""Networks of diffusers: equal to the model inside, keyed dropout, labels, and runs that continue bit by bit."""

import sys

import pytest
import torch
from torch import nn

from anisodiff.noise import combine
from anisodiff.registry import build_network
from anisodiff.training import Plan, load_model, train
from tests.networks.test_network_contract import TABLE
from tests.training.conftest import assert_equal, dataset, tiny  # noqa: F401

pytest.importorskip("diffusers")
UNET, DIT = "diffusers:UNet2DModel", "diffusers:DiTTransformer2DModel"
both = pytest.mark.parametrize("name", [UNET, DIT])


def built(name: str, *, recompute: bool = False, **keys: object) -> nn.Module:
    """With random weights in place of the zeros it begins with."""
    network = build_network(name, (16, 16), 3, 3, {**TABLE[name], **keys}).build(recompute=recompute)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return network


def images(count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(2)), torch.linspace(-1, 1, count)


@both
def test_it_is_the_model_of_diffusers(name):
    """Timesteps are 100 times the noise level; the table of labels of a DiT has a row for none."""
    x, c = images()
    network = built(name, dropout=0.0)
    labels = None if name == UNET else torch.zeros(3, dtype=torch.int64)
    expected = network.model.eval()(x, 100 * c, class_labels=labels).sample
    torch.testing.assert_close(network(x, c), expected, rtol=0, atol=0)


@both
def test_it_starts_with_zero(name):
    x, c = images()
    assert not build_network(name, (16, 16), 3, 3, TABLE[name]).build()(x, c).any()


@both
def test_dropout_follows_its_keys_alone(name):
    x, c = images()
    network, keys = built(name, dropout=0.3).train(), combine(1, torch.arange(3))
    plain = network(x, c)
    torch.manual_seed(7)
    assert torch.equal(plain, network(x, c))
    dropped = network(x, c, dropout_key=keys)
    assert not torch.allclose(plain, dropped)
    alone = network(x[1:2], c[1:2], dropout_key=keys[1:2])
    torch.testing.assert_close(dropped[1:2], alone, rtol=1e-3, atol=1e-4)
    kept = [bool((module(torch.ones(1, 4, 8, 8)) == 0).any()) for module in network._dropouts if module.rate]
    assert kept
    assert all(kept)


@both
def test_recomputing_changes_no_gradient(name):
    x, c = images()
    keys, found = combine(1, torch.arange(3)), []
    for recompute in (False, True):
        network = built(name, recompute=recompute, dropout=0.3).train()
        network(x, c, dropout_key=keys).square().mean().backward()
        found.append([weight.grad for weight in network.parameters()])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@both
def test_labels(name):
    """With classes a label counts, and none is the one after the last; without classes a label is refused."""
    x, c = images()
    network = built(name, classes=4)
    given = [network(x, c, labels=torch.full((3,), label)) for label in (0, 3, 4)]
    assert not torch.allclose(given[0], given[1])
    assert torch.equal(network(x, c), given[2])
    with pytest.raises(ValueError, match=r"network\.classes=N"):
        built(name)(x, c, labels=torch.zeros(3, dtype=torch.int64))


@both
def test_it_trains_and_continues_bit_by_bit(name, dataset, tmp_path):  # noqa: F811
    config = tiny(network={"name": name, **TABLE[name]}, images=16)
    train(config, dataset, tmp_path / "whole", track=())
    train(config.changed({"images": 8}), dataset, tmp_path / "parts", track=())
    train(config, dataset, tmp_path / "parts", track=())
    assert_equal(tmp_path / "whole", tmp_path / "parts")
    weights = load_model(tmp_path / "parts").model.network_state()
    assert any(bool(value.any()) for key, value in weights.items() if "out" in key)
    tuned = train(config, dataset, tmp_path / "tuned", start=tmp_path / "whole", track=())
    assert tuned.step == 4


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ({"name": UNET, "widht": 3}, "has no 'widht'; valid: classes, time_scale, "),
        ({"name": UNET, "sample_size": 3}, "has no 'sample_size'"),
        ({**TABLE[UNET], "name": UNET, "norm_num_groups": 3}, r"diffusers refuses its arguments \(num_channels"),
        ({"name": UNET}, "got images of 12×12, expected sides that are multiples of 8"),
        ({"name": DIT, "patch_size": 5}, "expected squares of a multiple of patch_size = 5"),
    ],
)
def test_mistakes_are_named_before_any_work(network, says):
    with pytest.raises(ValueError, match=says):
        Plan.of(tiny(network=network, size=12))


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ValueError, match=r"needs the package diffusers: pip install 'anisodiff\[diffusers\]'"):
        Plan.of(tiny(network={"name": UNET}))
