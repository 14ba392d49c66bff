"""What a feature network computes is part of what it is called; one that fails says so in one line."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anisodiff.metrics import Context, FeatureNetwork, Report, evaluate, function_network, onnx, torchscript
from tests.metrics.conftest import TINY, TINY_INPUT, Run, random_images, save_folder, save_network


class Means(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class Squares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean((2, 3))


class Three(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x, x, x


class OnlySmall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 8 * 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1))


def scripted(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module.eval()).save(str(path))
    return path


def test_networks_without_weights_are_told_apart_by_their_code(tmp_path: Path) -> None:
    found = [torchscript(scripted(m(), tmp_path / "net.pt")).weights for m in (Means, Squares)]
    assert found[0] != found[1]
    assert {len(w) for w in found} == {64}


def test_a_function_with_other_weights_is_another_network(run: Run, tmp_path: Path) -> None:
    save_folder(random_images(30, seed=1), tmp_path / "samples")
    save_folder(random_images(30, seed=2), tmp_path / "reference")
    (tmp_path / "weighted_colors.py").write_text(
        "import torch\n\n\ndef means(x):\n    return x.float().mean((2, 3)) / 255 * torch.load('w.pt')\n"
    )
    words = ("-r", "reference", "--network", "weighted_colors:means", "--device", "cpu", "--json", "-")
    reports = []
    for factor in (1.0, 3.0, 3.0):
        torch.save(torch.tensor(factor), tmp_path / "w.pt")
        code, out, err = run("samples", *words, "--metrics", "fid")
        assert code == 0, err
        reports.append(Report.from_json(out))
    assert reports[1]["fid"].value == pytest.approx(9 * reports[0]["fid"].value, rel=1e-4)
    assert reports[0].protocol.weights != reports[1].protocol.weights
    assert reports[1] == reports[2]
    assert "statistics from the cache" in err


def test_functions_that_say_nothing_of_themselves_are_not_cached(tmp_path: Path) -> None:
    """Two functions of one name must not share the statistics of a reference."""
    samples, reference = random_images(40, seed=1), random_images(50, seed=2)

    def fid(power: int) -> float:
        network = function_network("mine", lambda x: (x.float() / 255).pow(power).mean((2, 3)))
        report = evaluate(samples, reference, network=network, metrics=("fid",), context=Context(cache=tmp_path))
        return next(v.value for v in report.values if v.name == "fid")

    fid(1)
    with_cache = fid(3)
    shutil.rmtree(tmp_path / "statistics", ignore_errors=True)
    assert fid(3) == with_cache


def test_half_weights_are_named_whatever_they_are_stored_as(tmp_path: Path) -> None:
    def stored(path: Path) -> str:
        return torchscript(path, preprocess=TINY_INPUT).precision.split()[-1]

    half = save_network(tmp_path / "half.pt", half=True)
    torch.jit.load(half).float().save(str(tmp_path / "again.pt"))
    assert stored(half) == stored(tmp_path / "again.pt") == "float16"
    assert stored(save_network(tmp_path / "single.pt")) == "float32"
    assert stored(scripted(Means(), tmp_path / "none.pt")) == "none"


def raising(images: Tensor) -> Tensor:
    raise KeyError("no\nsuch layer")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising, r"mine: fails on images \[2,3,16,16\] .KeyError: .*such layer"),
        (lambda x: None, r"mine: expected features as a tensor \[2,D\], got NoneType"),
        (lambda x: (x, x), r"mine: expected features as a tensor \[2,D\], got tuple"),
        (lambda x: x.float().flatten(1)[:, :0], r"mine: expected features \[2,D\], got \(2, 0\)"),
    ],
)
def test_a_function_that_fails_is_one_line(function: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        function_network("mine", function)(random_images(2))
    assert "\n" not in str(caught.value)


def test_files_that_fail_are_one_line(tmp_path: Path) -> None:
    cases = [
        (OnlySmall(), r"net: fails on images .* .RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (Three(), "net: .*3 outputs"),
    ]
    for module, message in cases:
        network = torchscript(scripted(module, tmp_path / "net.pt"), preprocess=TINY_INPUT)
        with pytest.raises(ValueError, match=message) as caught:
            network(random_images(2))
        assert "\n" not in str(caught.value)


def test_an_onnx_file_of_one_batch_size_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    maker = pytest.importorskip("onnx")
    helper, tensor = maker.helper, maker.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        "mean",
        [helper.make_tensor_value_info("x", tensor, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("y", tensor, [1, 3, 1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    maker.save(model, str(tmp_path / "one.onnx"))
    with pytest.raises(ValueError, match=r"one: fails on images \[2,3,16,16\]") as caught:
        onnx(tmp_path / "one.onnx", preprocess=TINY_INPUT)(random_images(2))
    assert "\n" not in str(caught.value)


def test_running_out_of_memory_is_not_the_networks_fault() -> None:
    def full(images: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        function_network("mine", full)(random_images(2))


def test_modules_that_cannot_be_imported_are_one_line(run: Run, tmp_path: Path) -> None:
    save_folder(random_images(4), tmp_path / "samples")
    (tmp_path / "slip_of_the_pen.py").write_text("def f(x:\n")
    (tmp_path / "fails_at_once.py").write_text("raise RuntimeError('no\\nlicense')\n")
    for name in ("slip_of_the_pen", "fails_at_once"):
        code, _, err = run("samples", "-r", "samples", "--network", f"{name}:f", "--device", "cpu")
        assert code == 2
        assert err.strip().splitlines()[-1].startswith(f"anisodiff: --network {name}:f: cannot import")


def test_tf32_stands_in_the_protocol(run: Run, tmp_path: Path, network: FeatureNetwork) -> None:
    save_folder(random_images(4), tmp_path / "samples")
    words = ("samples", "-r", "samples", *TINY, "--metrics", "kid", "--json", "-")
    labels = [Report.from_json(run(*words, *more)[1]).protocol.precision for more in ((), ("--tf32",))]
    assert labels == [f"float32, TF32 {state}, weights stored as float32" for state in ("off", "on")]
    assert network.precision == labels[0]
