"""The package as it is shipped: one version, and a wheel that holds everything it needs."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import anisodiff

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "anisodiff"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_written_once_and_the_citation_agrees():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == anisodiff.__version__
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "anisodiff.version.__version__"}
    assert "version" not in PROJECT["project"]


def test_classifiers_name_the_supported_pythons():
    supported = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if "Python :: 3." in line]
    assert supported == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == f">={supported[0]}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a clean copy, without downloads; `make wheel` also runs it in a new environment."""
    if tuple(map(int, version("setuptools").split(".")[:1])) < (77,):
        pytest.skip("needs setuptools 77")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(folder)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_every_module_the_shipped_models_and_the_types(wheel):
    assert wheel.name == f"anisodiff-{anisodiff.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.startswith("anisodiff/")}
    kept = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert held == {path.relative_to(PACKAGE.parent).as_posix() for path in kept}
    assert {"anisodiff/py.typed", "anisodiff/pretrained/cifar10-tiny/model.safetensors"} < held


def test_the_oldest_versions_tested_are_the_lower_bounds():
    bounds = dict(text.split(">=") for text in PROJECT["project"]["dependencies"])
    lines = (ROOT / "requirements-oldest.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert tested.keys() == bounds.keys() - {"torch"}  # of torch only the build at hand is tested
    for name, least in bounds.items():
        padded = [*map(int, least.split(".")), 0, 0][:3]
        assert name == "torch" or [*map(int, tested[name].split(".")), 0, 0][:3] == padded


def test_the_lock_names_every_dependency_with_a_hash():
    lines = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+ --hash=sha256:[0-9a-f]{64}", pin) for pin in pins)
    locked = {pin.split("==")[0] for pin in pins}
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    names = {re.split(r"[<>=\[]", text)[0].lower() for text in wanted}
    assert names - {"torch", "anisodiff"} <= locked


def test_every_dependency_has_its_license_listed():
    listed = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), re.M)
    assert len(locked) > 50
    for text in (*PROJECT["project"]["dependencies"], *locked):
        assert re.search(rf"^\| {re.split('[<>=]', text)[0]} \| \S+ \| \w", listed, re.M | re.I), text
