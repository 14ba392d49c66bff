"""A network of one's own in the registry: what is stored of it, and what is refused in one line."""

from types import MappingProxyType

import pytest
import torch
from torch import Tensor, nn

from anisodiff import registry
from anisodiff.training import Plan, train
from tests.training.conftest import dataset, tiny  # noqa: F401


class Toy(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, width: int = 4) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, out_channels, 3, padding=1)
        )

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        return self.convolutions(x)


class Other(Toy):
    """Equal arguments, another architecture."""

    def forward(self, *given: Tensor, **keys: Tensor | None) -> Tensor:
        return torch.tanh(super().forward(*given, **keys))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    found = {"toy": "toy", "other": "other"}
    real = registry.resolve
    monkeypatch.setattr(registry, "NETWORKS", MappingProxyType({**registry.NETWORKS, **found}))
    monkeypatch.setattr("anisodiff.training.config.NETWORKS", registry.NETWORKS)
    monkeypatch.setattr(registry, "resolve", lambda path: {"toy": Toy, "other": Other}.get(path) or real(path))


def test_defaults_are_part_of_what_is_stored():
    assert Plan.of(tiny(network="toy")).network.arguments == {"in_channels": 1, "out_channels": 1, "width": 4}


def test_it_trains_and_resumes_and_its_default_may_be_named(dataset, tmp_path):  # noqa: F811
    train(tiny(network="toy", images=8), dataset, tmp_path, tensorboard=False)
    again = tiny(network={"name": "toy", "width": 4}, images=12)
    assert train(again, dataset, tmp_path, tensorboard=False).step == 3


def test_another_architecture_with_equal_arguments_is_refused(dataset, tmp_path):  # noqa: F811
    train(tiny(network="toy", images=8), dataset, tmp_path / "run", tensorboard=False)
    with pytest.raises(ValueError, match=r"network\.name was 'toy', now 'other'"):
        train(tiny(network="other", images=12), dataset, tmp_path / "run", tensorboard=False)
    with pytest.raises(ValueError, match="cannot start from another network: name differ"):
        train(tiny(network="other"), dataset, tmp_path / "new", start=tmp_path / "run", tensorboard=False)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"network": {"name": "toy", "in_channels": 5}}, "toy has no 'in_channels'; valid: width"),
        ({"network": "toy", "recompute": True}, "cannot recompute its activations; set recompute=false"),
        ({"process": "gallery-both"}, "unknown 'gallery-both'"),
    ],
)
def test_mistakes_are_named_before_any_work(changes, says):
    with pytest.raises(ValueError, match=says):
        Plan.of(tiny(**changes))


def test_only_an_ncsnpp_gets_a_second_output_or_published_weights(dataset, tmp_path):  # noqa: F811
    train(tiny(process="ve", network="toy", images=4), dataset, tmp_path / "run", tensorboard=False)
    wide = tiny(process="anisotropic", network="toy")
    with pytest.raises(ValueError, match=r"that needs an NCSN.., got network 'toy'"):
        train(wide, dataset, tmp_path / "wide", start=tmp_path / "run", tensorboard=False)
    (tmp_path / "file.pth").write_bytes(b"")
    with pytest.raises(ValueError, match=r"that needs an NCSN.., got network 'toy'"):
        train(tiny(process="ve", network="toy", parameterization="ve"), dataset, tmp_path / "published",
              start=tmp_path / "file.pth", tensorboard=False)  # fmt: skip
