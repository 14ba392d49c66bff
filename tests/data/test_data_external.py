"""Sources behind optional packages: the parts that need none of them, and the whole where they are installed."""

import importlib.util
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisodiff.data import DecodeError, HuggingFace, Lsun, named_source, open_source, prepare
from anisodiff.data.external import stored_items


def webp(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 16), (value, value, value)).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


STORE = {b"%040x" % i: webp(i * 10) for i in range(3)}


def test_stored_pictures_are_decoded_in_the_order_of_their_keys() -> None:
    items = [*stored_items(iter(STORE), STORE.get)]
    assert [item.name for item in items] == [key.decode() for key in STORE]
    assert [np.asarray(item.decode())[0, 0, 0] for item in items] == [0, 10, 20]


def test_damaged_and_missing_values_are_decode_errors() -> None:
    cut, gone = stored_items([b"cut", b"gone"], {b"cut": STORE[b"%040x" % 1][:20]}.get)
    with pytest.raises(DecodeError, match=r"."):
        cut.decode()
    with pytest.raises(DecodeError, match="no value under this key"):
        gone.decode()


@pytest.mark.parametrize(
    ("module", "extra", "source"),
    [
        ("lmdb", "lsun", Lsun),
        ("datasets", "datasets", lambda path: HuggingFace(name="nobody/nothing")),
    ],
)
def test_a_missing_package_is_named(tmp_path: Path, module: str, extra: str, source: object) -> None:
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(ValueError, match=rf"pip install 'anisodiff\[{extra}\]'"):
        len(source(tmp_path))  # type: ignore[operator]


def test_lmdb(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "church_lmdb"), map_size=1 << 20) as store, store.begin(write=True) as change:
        for key, value in STORE.items():
            change.put(key, value)
    source = open_source(tmp_path / "church_lmdb")
    assert isinstance(source, Lsun)
    done = prepare(source, tmp_path / "out", size=16).dataset
    assert done.images[:, 0, 0, 0].tolist() == [0, 10, 20]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.mdb").write_bytes(b"no database" * 1000)
    with pytest.raises(ValueError, match=r"cannot read .* as LMDB"):
        len(named_source("lsun", tmp_path / "bad"))


def test_hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("datasets")
    for i, name in enumerate(("cat", "dog")):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "in" / name / "1.png")
    source = HuggingFace(name=str(tmp_path / "in"))
    done = prepare(source, tmp_path / "out").dataset
    assert done.images[:, 0, 0, 0].tolist() == [0, 1]
    assert done.labels is not None
    assert done.labels.tolist() == [0, 1]
