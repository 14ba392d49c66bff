"""Files that are valid and small, or nearly, and ask for minutes or gigabytes: the limits are set low here."""

import gzip
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from anisodiff.data import FashionMnist, idx
from anisodiff.data.cifar10 import read_batch
from anisodiff.experiments import plots
from anisodiff.io import arrays, pickles, torchscript
from anisodiff.io.archives import blobs
from anisodiff.io.arrays import read_npz, read_pixels
from anisodiff.metrics import lpips
from anisodiff.metrics.cache import read_key

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
