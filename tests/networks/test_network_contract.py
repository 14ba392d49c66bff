"""What every registered network must do, whatever it is made of."""

import json
from importlib.util import find_spec

import pytest
import torch

from anisodiff.noise import combine
from anisodiff.registry import NETWORKS, build_network

_SMALL = {"nf": 8, "multipliers": [1, 1], "blocks": 1}
TABLE = {
    "cifar10": {"nf": 32, "multipliers": [1, 2, 2, 2], "blocks": 1},
    "cifar10-deep": {"nf": 32, "multipliers": [1, 2], "blocks": 1},
    "celeba64": {"nf": 32, "multipliers": [1, 2, 2], "blocks": 1},
    "lsun256": {"nf": 8, "multipliers": [1, 1, 1, 1, 1], "blocks": 1},
    "tiny": {**_SMALL, "dropout": 0.2},
    "small": _SMALL,
    "base": _SMALL,
    "diffusers:UNet2DModel": {
        "block_out_channels": [8, 16], "down_block_types": ["DownBlock2D", "AttnDownBlock2D"], "dropout": 0.2,
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"], "layers_per_block": 1, "norm_num_groups": 4,
    },
    "diffusers:DiTTransformer2DModel": {
        "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "patch_size": 4, "dropout": 0.2,
    },
}  # fmt: skip
"""Name → keys that make it small enough for a test."""
SIZE = {"cifar10": 32, "cifar10-deep": 32, "celeba64": 64, "lsun256": 256}
_EXTRA = pytest.mark.skipif(find_spec("diffusers") is None, reason="diffusers is not installed")
every_network = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_EXTRA if name.startswith("diffusers:") else ()) for name in TABLE]
)


def spec(name: str, outputs: int = 2):
    side = SIZE.get(name, 16)
    return build_network(name, (side, side), 3, 3 * outputs, TABLE[name])


def inputs(count: int = 3, side: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Networks run on smaller images than they are made for."""
    rng = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, side, side, generator=rng), torch.linspace(-1, 1, count)


def test_every_network_of_the_registry_is_tested():
    assert set(TABLE) == set(NETWORKS)


@every_network
def test_shapes_and_dtypes(name):
    x, c = inputs()
    network = spec(name).build()
    assert network(x, c).shape == (3, 6, *x.shape[2:])
    assert network.double()(x.double(), c.double()).dtype == torch.float64


@every_network
def test_a_sample_does_not_depend_on_its_neighbors(name):
    x, c = inputs()
    network = spec(name).build()
    with torch.no_grad():
        for parameter in network.parameters():  # not the zeros that many begin with
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        together, alone = network(x, c), network(x[1:2], c[1:2])
        other = network(x, c.flip(0))
    torch.testing.assert_close(together[1:2], alone, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(together[0], other[0])  # and it does depend on its noise level


@every_network
def test_first_weights_follow_from_the_seed(name):
    made = [spec(name).build(torch.Generator().manual_seed(seed)).state_dict() for seed in (3, 3, 4)]
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])
    assert any(not torch.equal(made[0][key], made[2][key]) for key in made[0])


@every_network
def test_dropout_is_keyed_and_off_without_keys(name):
    x, c = inputs()
    network = spec(name).build().train()
    keys = combine(1, torch.arange(3))
    assert torch.equal(network(x, c), network(x, c))
    assert torch.equal(network(x, c, dropout_key=keys), network(x, c, dropout_key=keys))


@every_network
def test_every_weight_has_a_gradient(name):
    x, c = inputs()
    network = spec(name).build()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    network(x, c).square().mean().backward()
    missing = [key for key, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not missing


@every_network
def test_it_is_built_again_from_what_a_checkpoint_stores(name):
    found = spec(name)
    stored = json.loads(json.dumps(dict(found.arguments)))
    again = found.make(stored, torch.Generator().manual_seed(0), False)
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in found.build().state_dict().items()
    }


@every_network
def test_an_unknown_key_is_named(name):
    side = SIZE.get(name, 16)
    with pytest.raises(ValueError, match="widht"):
        build_network(name, (side, side), 3, 3, {"widht": 3})
