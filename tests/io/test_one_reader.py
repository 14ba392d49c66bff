"""One odd folder: every verb takes the same pictures of it, with the same pixels, and so it does of a zip of it."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from anisodiff.data import open_dataset, open_source
from anisodiff.editing.inputs import read_pictures
from anisodiff.generation.priors import open_pool
from anisodiff.io.images import load_photo
from anisodiff.metrics.images import image_set, read_batches
from tests.metrics.conftest import fingerprint, save_network

SIDE = 16
PICTURES = [  # sorted as strings, not folder by folder
    "a.png", "b.jfif", "moving.GIF", "palette.png", "real.tif", "sub-way.BMP", "sub/alpha.png", "sub/cmyk.JPG",
    "sub/deeper/16bit.PNG", "turned.jpeg",
]  # fmt: skip
BROKEN = ["cut.png", "script.png", "text.png", *(["pipe.png"] if hasattr(os, "mkfifo") else [])]


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, NDArray[np.uint8]]]:
    """The folder, a zip of it, and the pixels [H, W, 3] of the pictures that lose none in their files."""
    draw = np.random.default_rng(0)
    colors = draw.integers(0, 256, (len(PICTURES), SIDE, SIDE, 3), dtype=np.uint8)
    rgb = {name: Image.fromarray(pixels) for name, pixels in zip(PICTURES, colors)}
    alpha = draw.integers(0, 2, (SIDE, SIDE), dtype=np.uint8) * 255
    clear = Image.fromarray(np.dstack([np.asarray(rgb["sub/alpha.png"]), alpha]))
    frames = [rgb["moving.GIF"].quantize(16), rgb["a.png"].quantize(16)]
    palette = rgb["palette.png"].quantize(16)
    deep = draw.integers(0, 65536, (SIDE, SIDE), dtype=np.uint16)
    real = draw.random((SIDE, SIDE), dtype=np.float32)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    top = np.zeros((SIDE, SIDE), np.uint8)
    top[: SIDE // 2] = 255
    turned = Image.fromarray(np.rot90(top).copy())
    files = {
        "a.png": encoded(rgb["a.png"], "PNG"),
        "b.jfif": encoded(rgb["b.jfif"], "JPEG"),
        "moving.GIF": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "palette.png": encoded(palette, "PNG", transparency=3),
        "real.tif": encoded(Image.fromarray(real), "TIFF"),
        "sub-way.BMP": encoded(rgb["sub-way.BMP"], "BMP"),
        "sub/alpha.png": encoded(clear, "PNG"),
        "sub/cmyk.JPG": encoded(rgb["sub/cmyk.JPG"].convert("CMYK"), "JPEG"),
        "sub/deeper/16bit.PNG": encoded(Image.fromarray(deep), "PNG"),
        "turned.jpeg": encoded(turned, "JPEG", exif=exif, quality=100),
        "cut.png": encoded(rgb["a.png"], "PNG")[:200],
        "script.png": encoded(rgb["a.png"], "EPS"),  # Ghostscript must not start
        "text.png": b"words",
        ".hidden.png": encoded(rgb["a.png"], "PNG"),
        ".cache/thumbnail.png": encoded(rgb["a.png"], "PNG"),
        "__MACOSX/a.png": encoded(rgb["a.png"], "PNG"),
        "sub/._alpha.png": b"an AppleDouble file",
        "notes.txt": b"words",
        "sub/prepared.npy": b"words",
    }
    root = tmp_path_factory.mktemp("reader") / "odd"
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    with zipfile.ZipFile(root.with_suffix(".zip"), "w") as archive:
        for name, data in reversed(files.items()):
            archive.writestr(name, data)
    if "pipe.png" in BROKEN:
        os.mkfifo(root / "pipe.png")
    shown = np.asarray(palette.convert("RGB")).copy()
    shown[np.asarray(palette) == 3] = 255
    known = {
        "a.png": np.asarray(rgb["a.png"]),
        "moving.GIF": np.asarray(frames[0].convert("RGB")),
        "palette.png": shown,
        "real.tif": np.dstack([np.rint(real.astype(float) * 255)] * 3),
        "sub-way.BMP": np.asarray(rgb["sub-way.BMP"]),
        "sub/alpha.png": np.where(alpha[..., None] == 255, np.asarray(rgb["sub/alpha.png"]), 255),
        "sub/deeper/16bit.PNG": np.dstack([np.rint(deep / 65535 * 255)] * 3),
    }
    return root, root.with_suffix(".zip"), {name: pixels.astype(np.uint8) for name, pixels in known.items()}


@pytest.fixture(scope="module")
def pixels(odd: tuple[Path, Path, dict[str, NDArray[np.uint8]]]) -> torch.Tensor:
    """What `evaluate` walks over, uint8 [N, 3, H, W]: the other verbs are compared with it."""
    with pytest.warns(UserWarning, match=f"{len(BROKEN)} of {len(PICTURES) + len(BROKEN)} images .* cut.png"):
        return torch.cat(list(read_batches(image_set(odd[0]), 4)))


def test_the_rule(odd: tuple[Path, Path, dict[str, NDArray[np.uint8]]], pixels: torch.Tensor) -> None:
    root, packed, known = odd
    names = [item.name for item in open_source(root).items()]
    assert sorted(set(names) - set(BROKEN)) == PICTURES == [name for name in names if name not in BROKEN]
    assert [item.name for item in open_source(packed).items()] == [name for name in names if name != "pipe.png"]
    found = dict(zip(PICTURES, pixels.permute(0, 2, 3, 1).numpy()))
    for name, expected in known.items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)
    half = SIDE // 2
    assert found["turned.jpeg"][: half - 1].min() > 240 > 15 > found["turned.jpeg"][half + 1 :].max()


def test_every_verb_has_the_same_set(odd, pixels, command, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    save_network(tmp_path / "tiny.pt")
    network = ("--network", "tiny.pt", "--trust-code", "--input", "unit")
    network += ("--device", "cpu", "--metrics", "fid", "--json", "-")
    diagnosed = []
    for source in odd[:2]:
        kind = source.suffix or "folder"
        code, out, err = command("data", "prepare", source, "-o", kind, "--size", SIDE, "--channels", 3, "--json")
        assert code == 0, err
        broken = [name for name in sorted(BROKEN) if source.is_dir() or name != "pipe.png"]
        assert [entry["name"] for entry in json.loads(out)["skipped"]] == broken
        dataset = open_dataset(tmp_path / kind)
        assert np.array_equal(dataset.images, pixels.numpy())

        pool = "images cannot be used"
        with pytest.warns(UserWarning, match=pool):
            assert open_pool(source, 3, (SIDE, SIDE)).fingerprint == dataset.fingerprint
        with pytest.warns(UserWarning, match=pool):
            pictures = read_pictures([source], 3, (SIDE, SIDE))
        assert [picture.name for picture in pictures] == [Path(name).stem for name in PICTURES]
        assert torch.equal(torch.stack([picture.photo for picture in pictures]), pixels.float() / 255)

        code, out, err = command("evaluate", source, "-r", kind, *network)
        assert code == 0, err
        assert err.count("cannot be used") == 1
        protocol = json.loads(out)["protocol"]
        assert protocol["samples_fingerprint"] == protocol["reference_fingerprint"] == fingerprint(image_set(pixels))
        assert protocol["samples_count"] == len(PICTURES)

        for given in (source, kind):  # the same numbers: the same pixels
            code, out, err = command("diagnose", given, "--process", "heat", "--size", SIDE, "--json")
            assert code == 0, err
            assert err.count("cannot be used") == (given == source)
            diagnosed.append(json.loads(out))
    assert diagnosed[0]["images"] == len(PICTURES)
    assert all(numbers == diagnosed[0] for numbers in diagnosed)

    for name, row in zip(PICTURES, pixels):  # what `forward` opens
        assert torch.equal(load_photo(odd[0] / name, SIDE), row.float() / 255)
    words = ("--size", SIDE, "--times", "0", "--states", "states.npz")
    assert command("forward", odd[0] / "turned.jpeg", *words)[0] == 0
    assert np.array_equal(np.load("states.npz")["states"][0], load_photo(odd[0] / "turned.jpeg").numpy())


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_given_by_name_is_refused(odd, refused, name) -> None:  # type: ignore[no-untyped-def]
    refused("forward", odd[0] / name, says=f"{name} cannot be used: ")
    with pytest.raises(ValueError, match=f"{name} cannot be used: "):
        read_pictures([odd[0] / name], 3, (SIDE, SIDE))


def test_a_limit_takes_the_first_readable_ones(odd, pixels, command) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = command("diagnose", odd[0], "--process", "heat", "--size", SIDE, "--images", 5, "--json")
    assert code == 0
    assert json.loads(out)["images"] == 5
    first = next(read_batches(image_set(odd[0]), 5))
    assert torch.equal(first, pixels[:5])


@pytest.mark.skipif("pipe.png" not in BROKEN, reason="no named pipes here")
@pytest.mark.parametrize("verb", [["data", "prepare"], ["diagnose"], ["evaluate"]])
def test_a_pipe_in_place_of_a_set_is_refused(refused, tmp_path, verb) -> None:  # type: ignore[no-untyped-def]
    os.mkfifo(tmp_path / "pipe.zip")
    more = {"data": ["-o", "out"], "diagnose": [], "evaluate": ["-r", "pipe.zip"]}[verb[0]]
    refused(*verb, "pipe.zip", *more, says="pipe.zip is neither a folder nor a regular file")


def test_too_many_broken_files_are_an_error_everywhere(command, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "set").mkdir()
    for n in range(30):
        Image.new("RGB", (SIDE, SIDE), (n, n, n)).save(tmp_path / "set" / f"{n:02d}.png")
    for n in range(11):
        (tmp_path / "set" / f"{n:02d}.png").write_bytes(b"broken")
    for words in (["data", "prepare", "set", "-o", "out"], ["diagnose", "set"]):
        code, _, err = command(*words)
        assert code == 2
        assert "11 images cannot be used, expected at most 10 (00.png: not an image" in err
    with pytest.raises(ValueError, match="11 images cannot be used, expected at most 10"):
        list(read_batches(image_set(tmp_path / "set"), 4))
    with pytest.raises(ValueError, match="11 images cannot be used, expected at most 10"):
        read_pictures([tmp_path / "set"], 3, (SIDE, SIDE))
