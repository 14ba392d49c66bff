"""Networks that are told a class: the null label, first weights, and what is refused."""

import pytest
import torch

from anisodiff.networks import NCSNpp, NCSNppConfig
from anisodiff.networks.published import widened
from anisodiff.registry import build_network, is_ncsnpp
from tests.networks.test_network_contract import SIZE, TABLE, inputs

SMALL = {"image_size": 16, "nf": 8, "multipliers": (1, 1), "blocks": 1, "attention": (), "dropout": 0.0}
LABELS = torch.tensor([0, 2, 1])


def moved(network):
    """With weights that are not the zeros that many begin with."""
    g = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, parameter in sorted(network.named_parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=g))
    return network


@pytest.mark.parametrize("name", TABLE)
def test_every_network_can_have_classes(name):
    """At first it answers to every label as the same network without classes does; then to each in its own way."""
    side, (x, c) = SIZE.get(name, 16), inputs()
    plain, told = (
        build_network(name, (side, side), 3, 3, {**TABLE[name], **keys}).build() for keys in ({}, {"classes": 4})
    )
    if is_ncsnpp(name):
        assert {key for key in told.state_dict() if key not in plain.state_dict()} == {"classes.weight"}
    with torch.no_grad():
        assert torch.equal(told(x, c, LABELS), plain(x, c))
        moved(told)
        null = torch.full((3,), 4)
        assert torch.equal(told(x, c), told(x, c, null))
        assert all(not torch.allclose(told(x, c, null)[k], told(x, c, LABELS)[k]) for k in range(3))
        alone = told(x[1:2], c[1:2], LABELS[1:2])
        torch.testing.assert_close(told(x, c, LABELS)[1:2], alone, rtol=1e-3, atol=1e-4)


def test_weights_without_classes_fit_a_network_with_them():
    plain, told = (NCSNpp(NCSNppConfig(**SMALL, **keys)) for keys in ({}, {"classes": 3}))
    moved(plain)
    told.load_state_dict(widened(plain.state_dict(), told.config))
    x, c = inputs()
    with torch.no_grad():
        assert torch.equal(told(x, c, LABELS), plain(x, c))


def test_mistakes_in_words():
    x, c = inputs()
    plain, told = NCSNpp(NCSNppConfig(**SMALL)), NCSNpp(NCSNppConfig(**SMALL, classes=3))
    with pytest.raises(ValueError, match="built without classes"):
        plain(x, c, LABELS)
    for wrong in (LABELS[:2], LABELS.float()):
        with pytest.raises(ValueError, match=r"labels: got .*, expected int64 \[3\]"):
            told(x, c, wrong)
    for wrong in (-1, 1.5, 1 << 20, True):
        with pytest.raises(ValueError, match="classes: got"):
            NCSNppConfig(**SMALL, classes=wrong)
