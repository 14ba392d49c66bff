from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anisodiff.metrics import (
    Context,
    FeatureNetwork,
    Preprocess,
    Settings,
    backbones,
    dinov2,
    evaluate,
    function_network,
    image_set,
    image_statistics,
    onnx,
    torchscript,
)
from anisodiff.metrics.features import float32_arithmetic
from tests.metrics.conftest import TINY_INPUT, TinyNet, publish, random_images, save_network


def test_torchscript_features_are_the_modules(tmp_path: Path) -> None:
    images = random_images(5)
    network = torchscript(save_network(tmp_path / "net.pt"), preprocess=TINY_INPUT)
    torch.manual_seed(0)
    expected = TinyNet().eval()((images.float() - 128) / 128)
    features, logits = network(images)
    torch.testing.assert_close(features, expected.detach())
    assert logits is None
    assert network.name == "net"
    assert not features.requires_grad


def test_a_network_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights must be here: nothing is fetched, and a name that is none is refused in one line."""
    images, published = random_images(6), publish(save_network(tmp_path / "net.pt"))
    monkeypatch.setattr(backbones, "INCEPTION", published)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ANISODIFF_INCEPTION", raising=False)
    refused = {
        "inception": r"tiny-net are not here: give anisodiff\.metrics\.inception\(FILE\), or inception",
        "incepton": "^network: got 'incepton', expected inception, dinov2, none, or a network of anisodiff.metrics",
        "net.pt": r"such as torchscript\(FILE\) or function_network\(NAME, FUNCTION\)$",
    }
    for name, says in refused.items():
        with pytest.raises(ValueError, match=says) as caught:
            evaluate(images, images, network=name)
        assert "\n" not in str(caught.value)
    monkeypatch.setenv("ANISODIFF_INCEPTION", str(tmp_path / "net.pt"))
    report = evaluate(images, images, network="inception", metrics="fid", context=Context(cache=tmp_path / "cache"))
    assert report.protocol.network == "tiny-net"
    assert evaluate(images, images, network="none", metrics="spectrum").protocol.network == "none"


def test_a_pair_of_outputs_is_features_and_logits(classifier: FeatureNetwork) -> None:
    features, logits = classifier(random_images(7))
    assert features.shape == (7, 8)
    assert logits is not None
    assert logits.shape == (7, 5)


def test_nan_features_are_refused() -> None:
    network = function_network("bad", lambda x: x.float().mean((2, 3)) / (x.float().amax((1, 2, 3)) > 0)[:, None])
    images = random_images(6)
    images[4] = 0
    with pytest.raises(ValueError, match="bad features of array: 1 of 6 rows hold NaN or infinity, the first is 4"):
        image_statistics(image_set(images), network, settings=Settings(batch_size=4))


def test_wrong_shapes_and_types_are_refused(pooled: FeatureNetwork) -> None:
    with pytest.raises(ValueError, match=r"expected uint8 \[B,3,H,W\]"):
        pooled(torch.zeros(2, 3, 8, 8))
    flat = function_network("flat", lambda x: x.float().mean())
    with pytest.raises(ValueError, match=r"flat: expected features \[2,D\]"):
        flat(random_images(2))
    with pytest.raises(ValueError, match="needs a weights"):
        function_network("nameless", lambda x: x.float(), weights="")


def test_arithmetic_switches_are_restored() -> None:
    def state() -> tuple[object, ...]:
        backends = torch.backends
        conv = getattr(backends.cudnn, "conv", None)
        return backends.cudnn.benchmark, getattr(conv, "fp32_precision", None), backends.cuda.matmul.allow_tf32

    before = state()
    with float32_arithmetic():
        if hasattr(torch.backends.cudnn, "conv"):
            assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert state() == before
    with pytest.raises(RuntimeError, match="inside"), float32_arithmetic(tf32=True):
        raise RuntimeError("inside")
    assert state() == before


def test_onnx(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        onnx(tmp_path / "absent.onnx")
    pytest.importorskip("onnxruntime")
    exporter = pytest.importorskip("onnx")
    helper, tensor = exporter.helper, exporter.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        "mean",
        [helper.make_tensor_value_info("x", tensor, ["b", 3, "h", "w"])],
        [helper.make_tensor_value_info("y", tensor, ["b", 3, 1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    exporter.save(model, str(tmp_path / "mean.onnx"))
    images = random_images(3)
    features, logits = onnx(tmp_path / "mean.onnx", preprocess=TINY_INPUT)(images)
    torch.testing.assert_close(features, (images.float() / 128 - 1).mean((2, 3)), atol=1e-5, rtol=0)
    assert logits is None
    (tmp_path / "words.onnx").write_text("words")
    with pytest.raises(ValueError, match="not a readable ONNX file"):
        onnx(tmp_path / "words.onnx")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    (tmp_path / "net.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match="needs the package onnxruntime"):
        onnx(tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="needs the package transformers"):
        dinov2()


def test_dinov2_from_local_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path / "dino")
    network = dinov2(str(tmp_path / "dino"), preprocess=Preprocess(size=28))
    assert network(random_images(2))[0].shape == (2, 16)
    with pytest.raises(ValueError, match="no local weights"):
        dinov2(str(tmp_path / "absent"))
