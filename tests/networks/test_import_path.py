"""A network of one's own by its import path: trained, continued, sampled, edited and compared."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import anisodiff
from anisodiff.networks import own
from anisodiff.training import TrainConfig, load_model
from tests.metrics.conftest import save_network
from tests.training.conftest import pixels

MODULE = '''
import torch
from torch import nn


class Net(nn.Module):
    """Shared weights, BatchNorm, a buffer that is not stored, a default that no file can hold."""

    def __init__(self, in_channels, out_channels, width=4, classes: int = 0, active=nn.SiLU):
        super().__init__()
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        self.norm, self.active = nn.BatchNorm2d(width), active()
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.again = self.middle
        self.last = nn.Conv2d(width, out_channels, 3, padding=1)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x, noise_level, labels=None, dropout_key=None):
        h = self.active(self.norm(self.first(x) * self.scale + noise_level[:, None, None, None]))
        return self.last(self.again(self.middle(h)))


class Flat(Net):
    def forward(self, x, noise_level, labels=None, dropout_key=None):
        return super().forward(x, noise_level).mean((2, 3))


class Shy(Net):
    def forward(self, x):
        return x


class Lonely(nn.Module):
    def forward(self, x, noise_level, labels=None, dropout_key=None):
        return x


class Torn(Net):
    def forward(self, x, noise_level, labels=None, dropout_key=None):
        return torch.cat([x, noise_level])


class Narrow(Net):
    def __init__(self, in_channels):
        super().__init__(in_channels, 1)


class Counting(Net):
    def __init__(self, in_channels, out_channels):
        super().__init__(in_channels, out_channels)
        self.calls = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)


def function(x):
    return x
'''
SET = "batch=4", "warm_up=8", "calibration=16", "log_every=8", "checkpoint_every=0", "sample_every=0", "lr=1e-3"
SETTINGS = [word for item in SET for word in ("--set", item)]


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Nothing is trusted or imported from another test."""
    monkeypatch.setattr(own, "_TRUSTED", {})
    yield
    sys.modules.pop("my_nets", None)


@pytest.fixture
def beside(tmp_path):
    """A module, images and a feature network in the working folder."""
    (tmp_path / "my_nets.py").write_text(MODULE)
    (tmp_path / "late.py").write_text("import math\n1 / 0\n")
    np.save(tmp_path / "raw.npy", pixels())
    Image.fromarray(pixels(1)[0, 0]).save(tmp_path / "photo.png")
    save_network(tmp_path / "tiny.pt")
    return tmp_path


def forgotten() -> None:
    """As in another process."""
    own._TRUSTED.clear()
    sys.modules.pop("my_nets", None)


def test_from_training_to_a_study(command, refused, beside):
    whole = ("train", "ve", "--data", "raw.npy", "--network", "my_nets:Net", "--set", "network.width=6", *SETTINGS)
    for words in ([*whole, "-o", "run", "--images", 8], [*whole, "-o", "straight", "--images", 16]):
        code, _, err = command(*words, "--device", "cpu")
        assert code == 0, err
    forgotten()
    refused("train", "-o", "run", "--images", 16, "--device", "cpu", says="nothing was imported")
    assert "my_nets" not in sys.modules
    code, out, err = command("train", "-o", "run", "--images", 16, "--network", "my_nets:Net", "--device", "cpu")
    assert code == 0, err  # named again: it keeps its width
    assert "finished at step 4" in out
    assert_same_run(beside)

    forgotten()
    for verb in (["sample", "run", "--n", 2], ["edit", "run", "photo.png"], ["evaluate", "run", "--n", 12]):
        words = [*verb, "--steps", 4, "--device", "cpu"]
        words += ["--metrics", "sliced"] if verb[0] == "evaluate" else ["--out", verb[0]]
        refused(*words, says="my_nets:Net is code outside of anisodiff, named by a file")
        code, _, err = command(*words, "--trust-code")
        assert code == 0, err
        forgotten()
    words = ["compare", "run", "ve:network=my_nets:Net;name=fresh", "--data", "run/data", "--images", 8, "--n", 12,
             "--steps", 4, "--network", "tiny.pt", "--input", "unit", "--out", "study", *SETTINGS]  # fmt: skip
    code, _, err = command(*words, "--trust-code")
    assert code == 0, err
    page = (beside / "study" / "results" / "page.md").read_text(encoding="utf-8")
    assert "fresh" in page


def assert_same_run(folder) -> None:
    """Stopped and continued, or not: equal bit by bit; what is stored is names, arguments and weights."""
    one, other = (load_model(folder / name) for name in ("run", "straight"))
    assert one.meta["network"] == {
        "name": "my_nets:Net", "in_channels": 1, "out_channels": 1, "width": 6, "classes": 0,
    }  # fmt: skip
    weights, again = one.model.network_state(), other.model.network_state()
    assert "scale" not in weights
    assert torch.equal(weights["again.weight"], weights["middle.weight"])
    assert int(weights["norm.num_batches_tracked"]) > 0
    assert all(torch.equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize(
    ("network", "says"),
    [
        ("my_nets:Missing", "cannot import it (AttributeError"),
        ("no_such_module:Net", "cannot import it (ModuleNotFoundError"),
        ("my_nets:function", "expected a class of torch.nn.Module, got function"),
        ("my_nets:Shy", "its call is forward(self, x), expected forward(x, noise_level"),
        ("my_nets:Lonely", "it cannot be built or called (TypeError"),
        ("my_nets:Torn", "it cannot be built or called (RuntimeError: "),
        ("my_nets:Torn", ", at my_nets.py:40)"),
        ("late:Net", "cannot import it (ZeroDivisionError: division by zero, at late.py:2)"),
        ("my_nets:Flat", "its output is [1, 1], expected [1, 1, 8, 8], as out_channels says"),
        ("my_nets:Narrow", "my_nets:Narrow: got Narrow(in_channels), expected in_channels, out_channels"),
        ("my nets:Net", "unknown 'my nets:Net'"),
        ("my_nets:Counting", "its parameter calls is torch.int64, expected floats; make it a buffer"),
    ],
)
def test_what_does_not_fit_is_one_line(command, beside, network, says):
    words = ("train", "ve", "--data", "raw.npy", "--network", network, "--images", 8, "--device", "cpu")
    code, _, err = command(*words, *SETTINGS, "-o", "run")
    assert code == 2
    assert says in err.splitlines()[-1]


def test_an_argument_it_does_not_have(refused, beside):
    refused(
        "train", "ve", "--data", "raw.npy", "--network", "my_nets:Net", "--set", "network.widht=3", "-o", "run",
        "--device", "cpu", says="my_nets:Net has no 'widht'; valid: width, classes, active",
    )  # fmt: skip


class Plain(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(in_channels, width, 1), nn.SiLU(), nn.Conv2d(width, out_channels, 1))

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        return self.body(x)


def test_the_class_itself_in_python(tmp_path):
    keys = {"process": "ve", "batch": 4, "calibration": 16, "warm_up": 0, "sample_every": 0, "progress": False}
    network = {"name": Plain, "width": 6}
    first = anisodiff.train(pixels(), tmp_path / "run", network=network, images=8, device="cpu", **keys)
    again = anisodiff.train(None, tmp_path / "run", network=Plain, images=16, device="cpu", progress=False)
    assert (first.outcome.step, again.outcome.step) == (2, 4)
    assert again.meta["config"]["network"] == {"name": f"{__name__}:Plain", "width": 6}
    images = again.sample(2, steps=4)
    assert torch.equal(images, anisodiff.load(tmp_path / "run", "cpu").sample(2, steps=4))
    own._TRUSTED.clear()
    with pytest.raises(ValueError, match="trust_code=True"):
        anisodiff.load(tmp_path / "run", "cpu")
    assert torch.equal(images, anisodiff.load(tmp_path / "run", "cpu", trust_code=True).sample(2, steps=4))


def test_what_python_cannot_store():
    with pytest.raises(ValueError, match="built already; expected its class"):
        TrainConfig(network=Plain(3, 3))

    class Inside(Plain):
        pass

    with pytest.raises(ValueError, match="define the class at the top of a module"):
        TrainConfig(network=Inside)
