"""Files that are valid and small, or nearly, and ask for minutes or gigabytes: the limits are set low here."""

import errno
import gzip
import os
import pickle
import tarfile
import threading
import zipfile
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.data import FashionMnist, idx, open_dataset
from anisodiff.data.cifar10 import read_batch
from anisodiff.experiments import layout, plots
from anisodiff.io import arrays, images, pickles, torchscript
from anisodiff.io.archives import blobs
from anisodiff.io.arrays import read_npz, read_pixels
from anisodiff.io.hub import fetch
from anisodiff.io.images import DecodeError, decode, open_image
from anisodiff.metrics import lpips
from anisodiff.metrics.cache import read_key
from anisodiff.pretrained import shipped
from anisodiff.studio.runs import Runs
from anisodiff.training import TrainConfig, hooks, train
from anisodiff.training.trackers import Trackers
from tests.attacks.test_trifles import photos

MB = 1 << 20


def again(name: bytes, value: bytes, times: int) -> bytes:
    """A pickle that calls ``name`` with one value again and again, and keeps what it makes."""
    return b"\x80\x02]q\x00(" + value + b"q\x010" + (b"c" + name + b"h\x01\x85R") * times + b"e."


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x02](" + b"]" * pickles.MOST + b"e.", "more than 131,072 instructions"),
        (b"\x80\x02})" + b"2\x86" * 60 + b"Ns.", "a key that is no name"),  # hashed, it has 2^60 parts
        (b"\x80\x02}X" + (300).to_bytes(4, "little") + b"a" * 300 + b"Ns.", "a key that is no name"),
        (b"\x80\x02\x8f.", "it uses EMPTY_SET"),
        (b"\x80\x02cnumpy\nndarray\n)\x81}b.", "a state of what has none"),
        (again(b"_codecs\nencode\n", b"X" + (400).to_bytes(4, "little") + b"a" * 400, 9), "one text again and again"),
        (b"\x80\x02\x96" + (1 << 40).to_bytes(8, "little") + b".", "bytearray8"),
    ],
)
def test_pickles_that_make_much_of_little(data, says):
    with pytest.raises(ValueError, match=f"refused pickle: .*{says}") as refused:
        read_batch(data)
    assert len(str(refused.value)) < 300


def test_weights_of_lpips_that_are_one_array_many_times(tmp_path, monkeypatch):
    monkeypatch.setattr(lpips, "LARGEST", 10_000)
    layer = {str(k): np.zeros(1000, np.float32) for k in range(2)}
    for content, says in (
        ({"A": {"B": layer, "C": layer}}, "10,000 bytes of arrays"),
        ({"A": dict.fromkeys("B" * 65)}, ""),
    ):
        (tmp_path / "a.ckpt").write_bytes(pickle.dumps(content, protocol=3))
        with pytest.raises(ValueError, match=f"no weights of LPIPS .*{says}"):
            lpips.read_weights(tmp_path / "a.ckpt", "/alexnet.ckpt")


def test_a_zip_that_unpacks_to_much(tmp_path, monkeypatch):
    monkeypatch.setattr("anisodiff.io.archives.LARGEST", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("alexnet.ckpt", bytes(MB))
    with pytest.raises(ValueError, match="unpacks to more than 200 times its size"):
        list(blobs(tmp_path / "a.zip"))


class Wide(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(100, 100), torch.nn.Linear(100, 100)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def test_torchscript_with_more_than_the_published_tensors(tmp_path, monkeypatch):
    torch.jit.script(Wide()).save(tmp_path / "a.pt")
    assert len(torchscript.script_tensors(tmp_path / "a.pt")) == 4
    for most in (10_000, 60_000):  # less than a storage; more than all storages, less than all tensors
        monkeypatch.setattr(torchscript, "LARGEST_TOTAL", most)
        with pytest.raises(ValueError, match=f"more than {most:,} bytes of tensors"):
            torchscript.script_tensors(tmp_path / "a.pt")


def test_modules_that_hold_each_other_twice(tmp_path):
    """31 levels of them would be two thousand million modules."""
    module = b"c__torch__\nM\n)\x81"
    data = module + b"}X\x01\0\0\0aNsbq\x00"
    for level in range(31):
        data += b"0" + module + b"}(X\x01\0\0\0ah" + bytes([level]) + b"X\x01\0\0\0bh" + bytes([level])
        data += b"ubq" + bytes([level + 1])
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + data + b".")
    with pytest.raises(ValueError, match="in two places"):
        torchscript.script_tensors(tmp_path / "a.pt")


def test_arrays_beyond_the_size_of_their_file(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGEST_PACKED", 1000)
    np.savez(tmp_path / "plain.npz", x=np.zeros(2 * MB, np.uint8))
    assert len(read_npz(tmp_path / "plain.npz")["x"]) == 2 * MB
    np.savez_compressed(tmp_path / "packed.npz", x=np.zeros(2 * MB, np.uint8))
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_npz(tmp_path / "packed.npz")
    np.savez(tmp_path / "key.npz", __key__=np.array("survey " + "a" * 10_000))
    assert read_key(tmp_path / "key.npz") is None


def test_a_result_as_wide_as_a_street(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 3, 4, 5000), np.uint8))
    with pytest.raises(ValueError, match="is damaged"):
        read_pixels(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", images=np.zeros((200, 3, 4, 5), np.uint8))
    assert len(plots._read(tmp_path / "a.npz")) == plots.ACROSS
    monkeypatch.setattr(plots, "LARGEST_SHOWN", 1000)
    monkeypatch.setattr(layout, "LARGEST_SHOWN", 1000)
    images = np.zeros((200, 3, 4, 5), np.uint8)
    assert len(layout.shown(images, 32)) == 16  # what is written can be read
    assert len(layout.shown(np.zeros((2, 3, 40, 50), np.uint8), 32)) == 1
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        plots._read(tmp_path / "a.npz")


def test_idx_files_that_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "LARGEST_TOTAL", 2 * MB)
    for number in range(3):
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(bytes(MB)))
    with pytest.raises(ValueError, match="more than 2,097,152 bytes together"):
        list(FashionMnist(path=tmp_path).items())


def tar_header(kind: bytes, size: int = 0) -> bytes:
    info = tarfile.TarInfo("a")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


SHARED = [b"".join(b"7 %03x=\n" % (k + n * 800) for k in range(800)).ljust(5632, b"\0") for n in range(2)]
TARS = {
    "a long name": (tar_header(b"L", 2 * MB) + bytes(2 * MB), "asks for 2097152 bytes"),
    "long names": ((tar_header(b"L", MB) + b"a" * MB + tar_header(b"0")) * 9, "unpacks to more than"),
    "members": (tar_header(b"0") * 20_000, "unpacks to more than"),
    "records": (tar_header(b"x", 8192) + b"5 a=\n" * 1638 + b"\0\0" + tar_header(b"0"), "more than 1,000 records"),
    "records of all": (
        b"".join(tar_header(b"g", 5600) + held + tar_header(b"0") for held in SHARED), "records for all members",
    ),
    "headers of headers": (tar_header(b"x") * 1000, "recursion"),
}  # fmt: skip


@pytest.mark.parametrize("name", TARS)
def test_headers_of_a_tar(tmp_path, name):
    data, says = TARS[name]
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(data + bytes(1024)))
    with pytest.raises(ValueError, match=says) as refused:
        list(blobs(tmp_path / "a.tar.gz"))
    assert "\n" not in str(refused.value)


def test_pictures_that_take_long_or_much_to_decode(tmp_path, monkeypatch):
    Image.new("RGB", (32, 32)).save(tmp_path / "a.jp2")
    assert decode(lambda: open_image(tmp_path / "a.jp2")).size == (32, 32)
    monkeypatch.setattr(images, "MOST_PACKED_PIXELS", 1000)
    with pytest.raises(DecodeError, match="megapixels of JPEG 2000"):
        open_image(tmp_path / "a.jp2")
    Image.new("L", (64, 64), 9).save(tmp_path / "a.jpg", progressive=True)
    assert decode(lambda: open_image(tmp_path / "a.jpg")).getpixel((0, 0)) == 9
    data = (tmp_path / "a.jpg").read_bytes()
    last = data[data.rindex(b"\xff\xda") : -2]
    for again, says in ((50, None), (100, "more than 100 scans")):
        (tmp_path / "b.jpg").write_bytes(data[:-2] + last * again + data[-2:])
        with pytest.raises(DecodeError, match=says) if says else nullcontext():
            decode(lambda: open_image(tmp_path / "b.jpg"))


def test_tensorboard_on_a_full_disk_says_so_in_one_line(tmp_path, monkeypatch, capfd):
    """It writes in a thread of its own, whose error Python would print with all its calls."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said: list[str] = []
    hook = threading.excepthook
    monkeypatch.setattr(RecordWriter, "write", full)
    monkeypatch.setattr(RecordWriter, "flush", full)
    trackers = Trackers(("tensorboard",), tmp_path, 0, {}, said.append)
    trackers.log({"step": 1, "loss": 1.0})
    trackers.close()
    assert threading.excepthook is hook
    assert len(said) == 1
    assert "No space left" in said[0]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["large", "pipe", "folder"])
def test_a_log_that_cannot_be_read(tmp_path, monkeypatch, refused, command, kind):
    photos(tmp_path / "photos")
    command("data", "prepare", "photos", "-o", "data", "--size", 8)
    assert command("train", "ve", "--data", "data", "--set", "network.nf=8", "--set", "network.attention=[]",
                   "--images", 0, "-o", "run")[0] == 0  # fmt: skip
    log = tmp_path / "run" / "log.jsonl"
    log.unlink()
    monkeypatch.setattr(hooks, "MOST_VALUES", 100)
    {"large": lambda: log.write_text('{"step": 0}\n' * 26), "pipe": lambda: os.mkfifo(log), "folder": log.mkdir}[
        kind
    ]()

    def held() -> dict:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}

    before = held()
    refused("train", "ve", "--data", "data", "--images", 100, "-o", "run", says="log.jsonl")
    assert held() == before
    with pytest.raises((ValueError, OSError)):
        train(TrainConfig(size=(8, 8)), open_dataset(tmp_path / "data"), tmp_path / "run")
    assert held() == before
    assert Runs(tmp_path).overview()["runs"][0]["step"] is None


@pytest.mark.parametrize(
    ("large", "size", "says"),
    [
        ("manifest.json", 1 << 40, "have more than 67,108,864 bytes: not downloaded"),
        ("model.safetensors", 1 << 40, "have more than 8,589,934,592 bytes: not downloaded"),
        ("model.safetensors", None, "the Hub does not tell the size of model.safetensors: not downloaded"),
        ("manifest.json", TimeoutError("slow"), "TimeoutError: slow"),
    ],
)
def test_a_model_on_the_hub_that_is_too_large(monkeypatch, large, size, says):
    """Or of which that is not known: it is asked for, and then only what was downloaded before is taken."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    folder = shipped("cifar10-tiny")
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()} | {large: size}
    files = [SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()]
    asked: list[str] = []

    class Api:
        def model_info(self, *_: object, **__: object) -> SimpleNamespace:
            if isinstance(size, Exception):
                raise size
            return SimpleNamespace(sha="0" * 40, siblings=files)

    def download(*, allow_patterns: list[str], local_files_only: bool, **_: object) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("the cache holds none")
        asked.extend(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ValueError, match=says):
        fetch("hub:me/a")
    assert large not in asked


NUMBERS = {
    "hexadecimal": "0x" + "f" * 5000, "decimal": "-" + "9" * 5000, "sexagesimal": "1" + ":59" * 3000,
    "a sexagesimal fraction": "1" + ":59" * 3000 + ".5", "text": "x" * 5000,
}  # fmt: skip


@pytest.mark.parametrize("text", NUMBERS.values(), ids=NUMBERS)
def test_numbers_of_thousands_of_digits(tmp_path, command, text):
    (tmp_path / "a.yaml").write_text(f"preset: ve\nT: {text}\n")
    for words in (("--set", f"T={text}"), ("--config", "a.yaml")):
        code, _, err = command("forward", *words, "-o", "a.png")
        assert (code, err.count("\n")) == (2, 1)
        assert " T" in err
        assert len(err) < 200
