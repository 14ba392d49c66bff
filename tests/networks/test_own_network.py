"""A network of one's own in the registry: what is stored of it, and what is refused in one line."""

from types import MappingProxyType

import pytest
import torch
from torch import Tensor, nn

from anisodiff import registry
from anisodiff.training import Plan, load_model, train
from anisodiff.training.setup import describe, differences
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


class Reading(Toy):
    """Reads a tensor's value as it is built, which tensors without memory do not have."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, width=int(torch.linspace(0, 4, 3)[-1].item()))


OWN = {"toy": Toy, "other": Other, "reading": Reading}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    found = {name: name for name in OWN}
    real = registry.resolve
    monkeypatch.setattr(registry, "NETWORKS", MappingProxyType({**registry.NETWORKS, **found}))
    monkeypatch.setattr("anisodiff.training.config.NETWORKS", registry.NETWORKS)
    monkeypatch.setattr(registry, "resolve", lambda path: OWN.get(path) or real(path))


def test_defaults_are_part_of_what_is_stored():
    assert Plan.of(tiny(network="toy")).network.arguments == {"in_channels": 1, "out_channels": 1, "width": 4}


def test_it_trains_and_resumes_and_its_default_may_be_named(dataset, tmp_path):  # noqa: F811
    train(tiny(network="toy", images=8), dataset, tmp_path, track=())
    again = tiny(network={"name": "toy", "width": 4}, images=12)
    assert train(again, dataset, tmp_path, track=()).step == 3


def test_another_architecture_with_equal_arguments_is_refused(dataset, tmp_path):  # noqa: F811
    train(tiny(network="toy", images=8), dataset, tmp_path / "run", track=())
    with pytest.raises(ValueError, match=r"network\.name was 'toy', now 'other'"):
        train(tiny(network="other", images=12), dataset, tmp_path / "run", track=())
    with pytest.raises(ValueError, match=r"its network differs: name is "):
        train(tiny(network="other"), dataset, tmp_path / "new", start=tmp_path / "run", track=())


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
    train(tiny(process="ve", network="toy", images=4), dataset, tmp_path / "run", track=())
    wide = tiny(process="anisotropic", network="toy")
    with pytest.raises(ValueError, match=r"that needs an NCSN.., got network 'toy'"):
        train(wide, dataset, tmp_path / "wide", start=tmp_path / "run", track=())
    (tmp_path / "file.pth").write_bytes(b"")
    with pytest.raises(ValueError, match=r"that needs an NCSN.., got network 'toy'"):
        train(tiny(process="ve", network="toy", parameterization="ve"), dataset, tmp_path / "published",
              start=tmp_path / "file.pth", track=())  # fmt: skip


def test_a_network_that_reads_values_as_it_is_built_is_loaded(dataset, tmp_path):  # noqa: F811
    train(tiny(network="reading", images=4), dataset, tmp_path, track=())
    weights = load_model(tmp_path).model.network_state()
    assert weights["convolutions.0.weight"].shape == (4, 1, 3, 3)


def test_a_key_of_ncsnpp_that_a_saved_network_lacks_was_at_its_default(dataset):  # noqa: F811
    """Of a run that was saved before the key existed."""
    wanted = describe(Plan.of(tiny()), dataset)
    saved = {**wanted, "network": {key: value for key, value in wanted["network"].items() if key != "qk_norm"}}
    assert differences(saved, wanted) == []
    turned = describe(Plan.of(tiny().changed({"network.qk_norm": True})), dataset)
    assert differences(saved, turned) == ["network.qk_norm was False, now True"]
