"""The package as it is shipped: one version, and a wheel that holds everything it needs."""

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
