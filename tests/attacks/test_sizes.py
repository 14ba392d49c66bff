"""Small files that ask for large memory, and files that are no files: one line, soon, and little memory."""

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import tracemalloc
import zipfile
from contextlib import contextmanager, nullcontext
from copy import copy

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.data import FashionMnist, array_file, in_memory, named_source, open_dataset, open_source, prepare
from anisodiff.data.cifar10 import read_batch
from anisodiff.experiments.sampling import Chunks
from anisodiff.io.archives import LARGEST_BLOB, blobs
from anisodiff.io.arrays import LARGEST_PACKED, read_npz
from anisodiff.io.images import DecodeError, decode, open_image, to_channels, whole_png
from anisodiff.io.picture_folder import read_picture
from anisodiff.io.records import read_config, read_json
from anisodiff.metrics.cache import load_arrays, store_arrays
from anisodiff.metrics.samples import read_origin
from anisodiff.networks import ncsnpp_config
from anisodiff.networks.published import load_score_sde
from anisodiff.pretrained import shipped
from anisodiff.training import load_model
from tests.support.forged import forge_config

MB = 1 << 20


@contextmanager
def little_memory(most: int = 300 * MB):
    """Of what Python and NumPy allocate."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


class Zeros(io.RawIOBase):
    """A stream of zeros behind some first bytes."""

    def __init__(self, size: int, head: bytes = b"") -> None:
        self.left, self.head = size, head

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        data = self.head[: len(buffer)] or bytes(min(len(buffer), self.left))
        self.head, self.left = self.head[len(data) :], self.left - len(data)
        buffer[: len(data)] = data
        return len(data)


def bomb(path, name: str, size: int, head: bytes = b"") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(name, "w") as out:
        shutil.copyfileobj(io.BufferedReader(Zeros(size, head), MB), out, MB)


BOMB = LARGEST_BLOB + 10 * MB


def test_a_zip_with_a_picture_of_gigabytes(tmp_path):
    bomb(tmp_path / "images.zip", "a.png", BOMB, b"\x89PNG\r\n\x1a\n")
    assert (tmp_path / "images.zip").stat().st_size < 3 * MB
    with little_memory(), pytest.raises(ValueError, match=r"no image can be used .*larger than"):
        prepare(open_source(tmp_path / "images.zip"), tmp_path / "out", size=8, channels=3)
    assert not (tmp_path / "out").exists()


def test_a_protocol_of_gigabytes(tmp_path):
    bomb(tmp_path / "samples.zip", "protocol.json", 70 * MB)
    with little_memory(), pytest.raises(ValueError, match=r"protocol\.json is larger than"):
        read_origin(tmp_path / "samples.zip")


def test_a_record_of_many_small_values(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{"a": [' + b"{}," * (6 * MB) + b"1]}")
    with little_memory(100 * MB), pytest.raises(ValueError, match="more than 5,000,000 values"):
        read_json(tmp_path / "a.json")


def test_idx_and_tar_of_gigabytes(tmp_path):
    (tmp_path / "idx").mkdir()
    with gzip.open(tmp_path / "idx" / "a.gz", "wb", compresslevel=1) as file:
        file.write(b"\x00\x00\x08\x01" + bytes(70 * MB))
    with little_memory(), pytest.raises(ValueError, match="unpacks to more than"):
        list(FashionMnist(path=tmp_path / "idx").items())
    # a header of a member that asks for a gigabyte, and a member that unpacks to a thousand times the file
    for kind, says in ((tarfile.XHDTYPE, "asks for"), (tarfile.REGTYPE, "unpacks to more than")):
        info = tarfile.TarInfo("a")
        info.type, info.size = kind, 1 << 30
        with gzip.open(tmp_path / "a.tar.gz", "wb", compresslevel=1) as file:
            file.write(info.tobuf() + bytes(MB))
        with little_memory(), pytest.raises(ValueError, match=says):
            list(blobs(tmp_path / "a.tar.gz"))


def test_a_pickle_of_twelve_bytes(tmp_path):
    memo = b"\x80\x02}r" + (1 << 29).to_bytes(4, "little") + b"."
    long = b"\x80\x04\x8e" + (1 << 33).to_bytes(8, "little") + b"x."
    for data in (memo, long, b"\x80\x02cos\nsystem\n.", pickle.dumps(np.zeros(2)), b"\x80"):
        with little_memory(), pytest.raises(ValueError, match="no CIFAR-10 batch"):
            read_batch(data)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data_batch_1").write_bytes(memo)
    with little_memory(), pytest.raises(ValueError, match="no complete CIFAR-10"):
        list(named_source("cifar10", tmp_path / "data").items())


def header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
    return out.getvalue()


def test_arrays_that_promise_more_than_they_have(tmp_path):
    store_arrays(tmp_path / "good.npz", "key", {"x": np.arange(3)})
    assert load_arrays(tmp_path / "good.npz", "key") is not None
    huge = LARGEST_PACKED + MB
    bomb(tmp_path / "huge.npz", "x.npy", 60 * MB, header((huge,)))
    (tmp_path / "short.npz").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "short.npz", "w") as archive:
        archive.writestr("x.npy", header((1 << 40,)) + b"abc")
    for name, says in (("huge", "unpacks to more than"), ("short", "ends early")):
        with little_memory(), pytest.raises(ValueError, match=says):
            read_npz(tmp_path / f"{name}.npz")
    cases = {
        (0, 8, 8): "one at least", (3, 0, 8): "one at least", (2, 1 << 15, 1 << 15, 3): "too large",
        (1, 11584, 11584): "too large", (10**30, 8, 8): "damaged", (1 << 40, 1 << 40): "damaged",
    }  # fmt: skip
    for shape, says in cases.items():
        (tmp_path / "a.npy").write_bytes(header(shape) + bytes(64))
        with little_memory(), pytest.raises(ValueError, match=says):
            array_file(tmp_path / "a.npy")


def test_labels_take_eight_bytes_each(tmp_path):
    count = (LARGEST_BLOB // 8) + 1
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header((count, 8, 8)))
        archive.writestr("labels.npy", header((count,)) + bytes(count))
    with little_memory(100 * MB), pytest.raises(ValueError, match="labels: too many to read"):
        array_file(tmp_path / "a.npz")


def test_a_header_of_gigabytes(tmp_path):
    head = b"\x93NUMPY\x02\x00" + struct.pack("<I", BOMB)
    bomb(tmp_path / "a.npz", "images.npy", BOMB, head)
    with little_memory(), pytest.raises(ValueError, match=r"a header of [\d,]+ bytes"):
        array_file(tmp_path / "a.npz")


@pytest.mark.parametrize("pack", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_compressed_published_weights(tmp_path, pack):
    """torch.save stores tensors as they are; torch.load also reads packed ones."""
    torch.save({"model": {"a": torch.zeros(64 * MB, dtype=torch.uint8)}}, tmp_path / "large.pth")
    with (
        zipfile.ZipFile(tmp_path / "large.pth") as old,
        zipfile.ZipFile(tmp_path / "a.pth", "w", pack, compresslevel=1) as new,
    ):
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    says = "tensors only" if pack == zipfile.ZIP_DEFLATED else "tensors are missing"
    with pytest.raises(ValueError, match=says):
        load_score_sde(tmp_path / "a.pth", ncsnpp_config("cifar10"))


def test_published_weights_that_share_their_bytes(tmp_path):
    """Entries that point to the same bytes: 64 MB on the disk, 2.5 GB in memory."""
    torch.save({"model": {"a": torch.zeros(64 * MB, dtype=torch.uint8)}}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth", "a") as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
        for k in range(40):
            again = copy(largest)
            again.filename = f"{largest.filename}{k}"
            archive.filelist.append(again)
        archive.writestr("mark", b"")  # so that the list of entries is written again
    assert (tmp_path / "a.pth").stat().st_size < 70 * MB
    with pytest.raises(ValueError, match="tensors only"):
        load_score_sde(tmp_path / "a.pth", ncsnpp_config("cifar10"))


@pytest.mark.parametrize("seed", range(30))
def test_damaged_published_weights(tmp_path, seed):
    torch.save({"model": {"a": torch.arange(20.0)}, "ema": [torch.ones(3)], "step": 1}, tmp_path / "a.pth")
    data, rng = bytearray((tmp_path / "a.pth").read_bytes()), np.random.default_rng(seed)
    for place in rng.integers(0, len(data), 8):
        data[place] = rng.integers(0, 256)
    (tmp_path / "a.pth").write_bytes(data)
    with pytest.raises(ValueError) as refused:
        load_score_sde(tmp_path / "a.pth", ncsnpp_config("cifar10"))
    assert "\n" not in str(refused.value)


BAD_HEADERS = {
    "half a dictionary": b"{'descr': '|u1', 'shape': (2, 1, 8, 8",
    "half a string": b"{'descr': '|u1', 'fort",
    "half a long string": b'{\'descr\': """|u1',
    "indented": b"    1\n  2\n",
    "a type of types": b"{'descr': [('a', 3)], 'fortran_order': False, 'shape': (1,)}",
    "a list as a key": b"{[1]: 2}",
    "nested": b"(" * 5000,
}


@pytest.mark.parametrize("text", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_that_python_cannot_parse(tmp_path, text):
    """NumPy gives it to Python's tokenizer and parser, which have errors of their own."""
    data = prepare(in_memory(np.zeros((2, 8, 8), np.uint8)), tmp_path / "data", size=8, channels=1).dataset.path
    bad = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    (data / "images.npy").write_bytes(bad)
    with pytest.raises(ValueError, match="it is missing, truncated or damaged; prepare it again") as refused:
        open_dataset(data)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="expected the NumPy format"):
        array_file(data / "images.npy")


def test_labels_and_images_of_a_dataset_are_bounded_and_regular(tmp_path):
    labels = np.arange(2)
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=labels)
    data = prepare(tmp_path / "a.npz", tmp_path / "data", size=8, channels=1).dataset.path
    assert open_dataset(data).labels.tolist() == [0, 1]
    (data / "labels.npy").write_bytes(header((1 << 40,), "<i8") + labels.tobytes())
    with little_memory(), pytest.raises(ValueError, match=r"cannot read .*labels\.npy"):
        open_dataset(data)
    (data / "images.npy").unlink()
    os.mkfifo(data / "images.npy")
    with pytest.raises(ValueError, match=r"images.npy is not a regular file"):
        open_dataset(data)


def test_pictures_of_other_formats_start_nothing(tmp_path):
    marked = tmp_path / "ran"
    eps = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n({marked}) (w) file closefile\nshowpage\n"
    (tmp_path / "a.png").write_text(eps)
    with pytest.raises(DecodeError, match="not an image"):
        decode(lambda: open_image(tmp_path / "a.png"))
    assert not whole_png(tmp_path / "a.png")
    with pytest.raises(ValueError, match="cannot be read"):
        read_picture(tmp_path / "a.png")
    assert not marked.exists()


def test_a_picture_of_too_many_pixels(tmp_path):
    Image.new("1", (8200, 8200)).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size < 100_000
    with little_memory(10 * MB), pytest.raises(DecodeError, match="more than 67 megapixels"):
        decode(lambda: open_image(tmp_path / "a.png"))


@pytest.mark.parametrize("mode", ["I;16", "F", "LA", "RGBA", "P"])
def test_conversions_take_little_memory_and_equal_those_of_the_whole(mode):
    """A band of rows at a time gives what the whole picture gives. Only the memory of arrays is traced."""
    numbers = np.random.default_rng(0).integers(0, 65536, (1500, 1000))
    kinds = {"I;16": numbers.astype(np.uint16), "F": (numbers / 65535).astype(np.float32)}
    image = Image.fromarray(kinds.get(mode, (numbers % 256).astype(np.uint8)))
    if mode in ("LA", "RGBA"):
        image = image.convert(mode)
        image.putalpha(Image.fromarray((numbers // 256).astype(np.uint8)))
    if mode == "P":
        image = image.convert("P")
        image.info["transparency"] = 7
    with little_memory(12 * MB) if mode in kinds else nullcontext():
        made = np.asarray(to_channels(image, 1 if mode in kinds else 3))
    if mode in kinds:
        assert np.array_equal(made, np.rint(np.asarray(image, np.float64) * (255 / (1 if mode == "F" else 65535))))
    else:
        front = image.convert("RGBA")
        whole = Image.alpha_composite(Image.new("RGBA", front.size, "white"), front).convert("RGB")
        assert np.array_equal(made, np.asarray(whole))


def test_a_png_is_whole_from_end_to_end(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (9, 9, 3), np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(noise).save(path)
    data = path.read_bytes()
    assert whole_png(path)
    flipped, empty = data[:60] + bytes([data[60] ^ 1]) + data[61:], data[:33] + data[-12:]  # empty: no pixels
    for bad in (flipped, empty, data[:40] + data[-12:], data[:-1], b"", data[-12:]):
        path.write_bytes(bad)
        assert not whole_png(path)


def test_special_files_are_not_waited_for(tmp_path, command):
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "photos").mkdir()
    os.mkfifo(tmp_path / "photos" / "a.png")
    os.mkfifo(tmp_path / "photos" / "0-3.npz")
    assert Chunks(tmp_path / "photos").ranges() == []
    with pytest.raises(DecodeError, match="not a regular file"):
        decode(lambda: open_image(tmp_path / "pipe.png"))
    for path in (tmp_path / "pipe.yaml", "/dev/zero"):
        with pytest.raises(ValueError, match="not a regular file"):
            read_config(path)
        with pytest.raises(ValueError, match="not a regular file"):
            read_json(path)
    for words in (
        ("forward", "--config", "pipe.yaml", "-o", "a.png"),
        ("forward", "--config", "/dev/zero", "-o", "a.png"),
        ("forward", "pipe.png", "-o", "a.png"),
        ("train", "--config", "pipe.yaml", "-o", "run"),
        ("train", "--data", "pipe.png", "-o", "run"),
        ("train", "--data", "photos", "-o", "run"),
        ("data", "prepare", "pipe.png", "-o", "out"),
        ("evaluate", "pipe.png", "-r", "photos", "--network", "none"),
        ("evaluate", "--compare", "pipe.yaml", "--compare", "pipe.yaml"),
        ("evaluate", "photos", "-r", "photos", "--inception", "pipe.png", "--metrics", "fid"),
        ("edit", "cifar10-tiny", "pipe.png", "-o", "edits"),
        ("sample", "cifar10-tiny", "--prior", "simulate", "--images", "pipe.png", "-o", "made"),
        ("diagnose", "--data", "pipe.png"),
    ):
        code, _, err = command(*words)
        assert code == 2, (words, err)
        assert err.count("\n") == err.count("anisodiff: ") + err.count("picked"), (words, err)


def test_a_config_is_bounded_and_compared_with_the_tensors_first(tmp_path):
    shutil.copytree(shipped("cifar10-tiny"), tmp_path / "model")
    held = json.loads((tmp_path / "model" / "config.json").read_text())
    network = held["config"]["network"]
    attacks = {"blocks": 10**6, "nf": 10**9, "multipliers": [1] * 10**5}
    attacks2 = {"blocks": 200, "nf": 16000}
    for key, value in [*attacks.items(), *attacks2.items()]:
        held["config"]["network"] = {**network, key: value}
        forge_config(tmp_path / "model", held)
        with pytest.raises(ValueError, match=f"{key}: got|another network than model"):
            load_model(tmp_path / "model")
    held["config"] |= {"network": network, "size": [10**6, 10**6]}
    forge_config(tmp_path / "model", held)
    with pytest.raises(ValueError, match="size: got"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize("text", ["!!bool maybe", '!!int ""', '!!float ""', "!!timestamp z"])
def test_tags_of_yaml_that_do_not_fit(tmp_path, refused, text):
    (tmp_path / "a.yaml").write_text(f"T: {text}")
    refused("forward", "--config", "a.yaml", says="not valid YAML")
    refused("forward", "--set", f"T={text}", says="T")


def test_deep_nesting_and_aliases_of_aliases(tmp_path, refused):
    deep = "x=" + "[" * 3000
    refused("forward", "--set", deep, says="nested too deep")
    layers = ["a0: &a0 [1]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    (tmp_path / "laughs.yaml").write_text("\n".join(layers))
    refused("forward", "--config", "laughs.yaml", says="more than 5,000,000 values")
    merged = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 9)]
    (tmp_path / "merge.yaml").write_text("\n".join(merged))  # 9^8 copies
    refused("forward", "--config", "merge.yaml", says="merge keys (<<) are not read")
    (tmp_path / "deep.yaml").write_text("x: " + "[" * 60 + "]" * 60)
    refused("forward", "--config", "deep.yaml", says="nested deeper than")
    for text in ("[" * 10**5, '{"a":' * 500 + "1" + "}" * 500):
        (tmp_path / "deep.json").write_text(text)
        with pytest.raises(ValueError, match=r"no valid JSON|nested deeper"):
            read_json(tmp_path / "deep.json")


def test_channels_that_no_picture_has_are_refused_before_training():
    from anisodiff.training import TrainConfig

    with pytest.raises(ValueError, match=r"channels: got 5, expected 1 .* or 3"):
        TrainConfig(channels=5)
    assert torch.get_num_threads() == 1
