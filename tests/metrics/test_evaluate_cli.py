"""``anisodiff evaluate`` end to end, with a tiny network in place of Inception."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.data import prepare
from anisodiff.metrics import METRICS, Context, Report, evaluate, torchscript
from anisodiff.metrics.resize import UNIT_INPUT
from tests.metrics.conftest import TINY, Run, random_images, save_folder

EVERY = [
    "fid", "fid_infinity", "fid_bias", "kid", "precision", "recall", "density", "coverage", "sliced_wasserstein",
    "spectrum_error", "edges", "edge_orientation", "edge_coherence", "edge_magnitude",
]  # fmt: skip


@pytest.fixture
def sets(tmp_path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """``samples`` (40) and ``reference`` (50) as folders of PNG files, and as tensors."""
    samples, reference = random_images(40, seed=1), random_images(50, seed=2)
    save_folder(samples, tmp_path / "samples")
    save_folder(reference, tmp_path / "reference")
    return samples, reference


def cells(table: str) -> dict[str, list[str]]:
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


def only_cache(tmp_path: Path) -> list[str]:
    """Files of ours: matplotlib keeps its list of fonts wherever it is first asked for one."""
    files = (p for p in (tmp_path / "home").rglob("*") if p.is_file() and "matplotlib" not in p.parts)
    return [p.name for p in files]


def test_table_json_and_sheet(run: Run, sets: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    code, out, err = run("samples", "--reference", "reference", *TINY, "--json", "r.json", "--sheet", "s.png")
    assert code == 0, err
    shown = cells(out)
    assert list(shown)[1:] == [*EVERY, "nearest_features", "nearest_pixels"]
    report = Report.from_json(Path("r.json").read_text())
    assert report == Report.from_json(report.to_json())
    for value in report.values:
        assert shown[value.name][0] == f"{value.value:.6g}"
        assert shown[value.name][2].removesuffix("¹").strip() == "; ".join(value.notes(warnings=False))
    assert all(shown[name][2].endswith("¹") for name in EVERY)
    assert out.count("warning") == out.count("\n¹ warning: 40 < 10,000 samples") == 1
    assert report.protocol.line() in out
    network = torchscript("tiny.pt", name="tiny", preprocess=UNIT_INPUT)
    direct = evaluate(*sets, network=network, metrics=("fid", "kid"), context=Context(cache=tmp_path / "other"))
    assert [report[n].value for n in ("fid", "kid")] == [direct[n].value for n in ("fid", "kid")]
    assert out.splitlines()[-2:] == ["wrote r.json", "wrote s.png"]
    assert Image.open("s.png").size[0] > 3 * 64
    assert "statistics kept in" in err
    code, out, err = run("samples", "--reference", "reference", *TINY, "--json", "-")
    assert code == 0
    assert "reference: statistics from the cache" in err
    assert Report.from_json(out).values == report.values[:-2]  # and nothing but JSON is printed


def test_every_container_gives_the_same_numbers(
    run: Run, sets: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    samples, reference = sets
    with zipfile.ZipFile("samples.zip", "w") as archive:
        for file in sorted(Path("samples").iterdir()):
            archive.write(file, file.name)
    np.savez("samples.npz", images=samples.permute(0, 2, 3, 1).numpy())
    np.savez("reference.npz", reference.permute(0, 2, 3, 1).numpy())
    prepare("reference.npz", "prepared", size=16, channels=3)
    first, *rest = [
        Report.from_json(run(container, "-r", other, *TINY, "--json", "-")[1])
        for container, other in [
            ("samples", "reference"), ("samples.zip", "reference.npz"), ("samples.npz", "prepared"),
        ]
    ]  # fmt: skip
    (file,) = (tmp_path / "home" / "anisodiff" / "statistics").iterdir()  # one reference, whatever it came in
    rest.append(Report.from_json(run("samples", "-r", file, *TINY, "--json", "-")[1]))
    for report in rest:
        assert report.values == first.values
        assert report.protocol.differences(first.protocol) == ()
    assert rest[-1].protocol.reference == "reference"


def test_help_has_examples_and_names_every_metric(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "Example: anisodiff evaluate" in out
    assert all(name in out for name in METRICS)


def test_metrics_are_chosen_and_samples_limited(run: Run, sets: object) -> None:
    code, out, _ = run("samples", "-r", "reference", *TINY, "--metrics", "spectrum, kid,kid", "--n", 30)
    assert code == 0
    assert list(cells(out)) == ["metric", "spectrum_error", "kid"]
    assert out.splitlines()[-1].startswith("30 samples of samples (")
    assert "; KID blocks of 1000, seed 0; " in out  # settings of other metrics are not in the protocol


def test_heldout_images_show_copies(run: Run, sets: object, tmp_path: Path) -> None:
    save_folder(random_images(50, seed=3), tmp_path / "heldout")
    words = ("-r", "reference", "--heldout", "heldout", *TINY, "--metrics", "memorization", "--json", "-")
    copied = Report.from_json(run("reference", *words)[1])
    new = Report.from_json(run("samples", *words)[1])
    assert copied["closer_to_training_features"].value == 1
    assert new["closer_to_training_features"].value < 0.9


def test_reports_are_compared_only_under_one_protocol(run: Run, sets: object, tmp_path: Path) -> None:
    save_folder(random_images(40, seed=5), tmp_path / "better")
    for name in ("samples", "better"):
        assert run(name, "-r", "reference", *TINY, "--json", f"{name}.json")[0] == 0
    code, out, _ = run("--compare", "samples.json", "--compare", "better.json")
    assert code == 0
    assert cells(out)["metric"] == ["samples.json", "better.json"]
    assert float(cells(out)["fid"][0]) == pytest.approx(
        Report.from_json(Path("samples.json").read_text())["fid"].value, rel=1e-5
    )
    code, out, err = run("better", "-r", "reference", *TINY, "--n", 30, "--compare", "samples.json")
    assert code == 2
    assert "different protocols (samples_count: 30 ≠ 40); add --force" in err
    assert "fid" in cells(out)  # what was measured is not lost
    code, out, _ = run("better", "-r", "reference", *TINY, "--n", 30, "--compare", "samples.json", "--force")
    assert code == 0
    assert "warning: protocols differ, better against samples.json: samples_count: 30 ≠ 40" in out
    code, out, err = run("better", "-r", "reference", *TINY, "--compare", "samples.json", "--json", "-")
    assert code == 0
    assert Report.from_json(out)
    assert cells(err)["metric"] == ["better", "samples.json"]


def test_the_protocol_of_samples_is_read(run: Run, sets: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    _, reference = sets
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))[:20]
    save_folder(reference[order], tmp_path / "leaky")
    said = {"nfe": 35, "prior": "simulate", "seed": 7, "sources": order.tolist(), "count": 20}
    (tmp_path / "leaky" / "protocol.json").write_text(json.dumps(said))
    report = Report.from_json(run("leaky", "-r", "reference", *TINY, "--json", "-")[1])
    assert (report.protocol.nfe, report.protocol.prior, report.protocol.seed) == (35, "simulate", 7)
    assert report["source_recovered_features"].value == report["source_recovered_pixels"].value == 1
    python = evaluate(tmp_path / "leaky", tmp_path / "reference")
    assert (python.protocol.nfe, python.protocol.prior, python.protocol.seed) == (35, "simulate", 7)
    assert python["source_recovered_pixels"].value == 1
    (tmp_path / "leaky" / "00019.png").unlink()
    code, _, err = run("leaky", "-r", "reference", *TINY)
    assert code == 0
    assert "leaky holds 19 images, its protocol says 20: are they complete?" in err
    (tmp_path / "leaky" / "protocol.json").write_text("{")
    code, _, err = run("leaky", "-r", "reference", *TINY)
    assert code == 2
    assert "protocol.json: no valid JSON" in err


def test_a_function_of_the_users_own_is_a_network(run: Run, sets: object, tmp_path: Path) -> None:
    (tmp_path / "my_colors.py").write_text("def means(x):\n    return x.float().mean((2, 3)) / 255\n")
    words = ("-r", "reference", "--network", "my_colors:means", "--device", "cpu", "--json", "-")
    report = Report.from_json(run("samples", *words)[1])
    assert report.protocol.network == "my_colors:means"
    assert len(report.protocol.weights) == 64
    assert 0 < report["fid"].value < 0.1
    code, _, err = run("samples", "-r", "reference", "--network", "my_colors:medians", "--device", "cpu")
    assert code == 2
    assert "cannot import it (AttributeError" in err


def bad_cases(folder: Path) -> list[tuple[tuple[object, ...], str]]:
    (folder / "empty").mkdir()
    mixed = save_folder(random_images(2), folder / "mixed")
    Image.new("RGB", (20, 16)).save(mixed / "z.png")
    save_folder(random_images(10, size=24), folder / "large")
    (folder / "words.pt").write_text("not a network")
    (folder / "words.json").write_text("{}")
    (folder / "nan.py").write_text("def features(x):\n    return x.float().mean((2, 3)) * float('nan')\n")
    (folder / "model").mkdir()
    (folder / "model" / "model.safetensors").write_text("")
    (folder / "begun" / "checkpoints").mkdir(parents=True)
    np.savez(folder / "moments.npz", mu=np.zeros(3), sigma=np.eye(3))
    both = ("samples", "-r", "reference")
    return [
        (("empty", "-r", "reference"), "empty holds no images"),
        (("absent", "-r", "reference"), "cannot read absent (No such file or directory)"),
        (("samples", "-r", "empty"), "empty holds no images"),
        (("mixed", "-r", "large"), "first: anisodiff data prepare mixed --output mixed-16 --size 16"),
        (("samples", "-r", "moments.npz"), "expected one array of images"),
        ((*both, "--network", "nan:features"), "40 of 40 rows hold NaN or infinity"),
        ((*both, "--network", "inception", "--weights", "words.pt"), "words.pt: not a TorchScript file"),
        ((*both, "--network", "inception", "--weights", "tiny.pt"), "not the inception-2015-12-05 weights"),
        ((*both, "--network", "inception", "--weights", "none.pt"), "none.pt: no such file"),
        ((*both, "--network", "inception", "--inception", "none.pt"), "none.pt: no such file"),
        ((*both, "--network", "incepton"), "unknown --network 'incepton'; did you mean 'inception'?"),
        ((*both, "--network", "words.pt", "--trust-code"), "words.pt: not a TorchScript file"),
        ((*both, "--network", "tiny.pt"), "tiny.pt is a program that would be run: add --trust-code"),
        ((*both, "--network", "absent.onnx"), "absent.onnx: no such file"),
        ((*both, "--network", "tiny.pt", "--input", "units"), "unknown --input 'units'; did you mean 'unit'?"),
        ((*both, "--input", "unit"), "--input belongs to a network from a file"),
        ((*both, "--network", "tiny.pt", "--weights", "tiny.pt"), "--weights belongs to --network inception"),
        ((*both, *TINY, "--metrics", "fids"), "no metric fids; choose from fid, kid"),
        ((*both, *TINY, "--metrics", ","), "no metric was named"),
        ((*both, *TINY, "--metrics", "is"), "is does not apply: tiny has no logits"),
        ((*both, *TINY, "--sheet", "s.jpg"), "--sheet must end in .png"),
        ((*both, *TINY, "--compare", "words.json"), "words.json: not a report of this version"),
        ((*both, *TINY, "--compare", "none.json"), "cannot read none.json"),
        ((*both, *TINY, "--data", "large"), "--data is the path of a named set; reference is not one"),
        ((*both, *TINY, "--images", "large"), "--images belongs to a model"),
        ((*both, *TINY, "--latent", "large"), "--latent belongs to a model, and samples holds images"),
        *(
            ((*both, *TINY, option, value), f"{option} belongs to a model, and samples holds images; leave it out")
            for option, value in [("--steps", 50), ("--sampler", "ode"), ("--prior", "auto"), ("--seed", 0)]
        ),
        ((*both, *TINY, "--guidance-interval", "0.2,5"), "--guidance-interval belongs to a model"),
        ((*both, "--network", "none", "--metrics", "fid"), "fid does not apply: it needs a feature network"),
        ((*both, *TINY, "--metrics", "edges", "--sheet", "s.png"), "a sheet belongs to the metric memorization"),
        (("samples", *TINY), "samples is no run or model: say what to compare it with, --reference"),
        (("rnu", "--steps", 20, *TINY), "cannot read rnu (No such file or directory): expected a run or model"),
        (("rnu", *TINY), "cannot read rnu (No such file or directory): expected a run or model"),
        ((*both, *TINY, "--json", "large"), "cannot write large: it is a folder"),
        (("-r", "reference"), "expected a run or model, or a folder, zip, npz or npy of images"),
        (
            ("cifar10-tiny", *TINY),
            "cifar10-tiny does not say which images it was trained on: give a reference (--reference",
        ),
        (("cifar10-tiny", "--data", "large", *TINY), "give it with --reference, such as cifar10/train"),
        (("samples", "-r", "cifar11/train"), "neither a path nor a named set (cifar10"),
        (("samples", "-r", "cifar10/train", *TINY), "cifar10/train is not available"),
        (("samples", "-r", "cifar10/train", "--data", "large", *TINY), "the reference cifar10/train is 32×32"),
        (("model", "-r", "reference"), "manifest.json is missing: the checkpoint is incomplete or damaged"),
        (("begun", "-r", "reference", *TINY), "begun holds no checkpoint"),
    ]


def test_bad_paths_are_refused_before_any_work(run: Run, sets: object, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "text.txt").write_text("text")
    both = ("samples", "-r", "reference", "--network", "nowhere.pt")
    for words, message in [
        ((*both, "--json", "samples"), "cannot write samples: it is a folder; give a file name"),
        ((*both, "--json", "text.txt/a.json"), "text.txt is not a folder"),
        ((*both, "--sheet", "folder.png"), "cannot write folder.png: it is a folder; give a file name"),
        (("samples", "-r", "nowhere", "--network", "nowhere.pt"), "nowhere: neither a path nor a named set"),
        ((*both, "--heldout", "nowhere"), "nowhere: neither a path nor a named set"),
        (("cifar10-tiny", "-r", "nowhere", "--network", "nowhere.pt"), "nowhere: neither a path nor a named set"),
    ]:
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (2, "", 1), (words, err)
        assert message in err


def test_mistakes_are_one_line_and_poison_nothing(run: Run, sets: object, tmp_path: Path) -> None:
    for words, message in bad_cases(tmp_path):
        known = () if "--network" in words else TINY if "--input" not in words else ("--device", "cpu")
        code, _, err = run(*words, *known)
        last = err.strip().splitlines()[-1]
        assert code == 2, words
        assert last.startswith("anisodiff: "), (words, err)
        assert message in last, (words, err)
        assert "brought to" not in err, "a refusal comes first"
        assert len(last) < 250, last
    kept = [name for name in only_cache(tmp_path) if not name.endswith(".npz")]
    assert kept == []  # statistics of good references may be there, half files and wrong weights not
    code, out, err = run("samples", "-r", "reference", *TINY, "--metrics", "fid", "--json", "-")
    assert code == 0, err
    network = torchscript("tiny.pt", name="tiny", preprocess=UNIT_INPUT)
    context = Context(cache=tmp_path / "fresh")
    fresh = evaluate("samples", "reference", network=network, metrics=("fid",), context=context)
    assert Report.from_json(out).values == fresh.values
