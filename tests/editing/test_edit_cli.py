"""`anisodiff edit`: what it writes, what it says, and what it says to a mistake."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anisodiff.training import find
from tests.generation.conftest import spoil
from tests.training.conftest import pixels

CPU = ["--device", "cpu"]


def save(name: str, picture: np.ndarray) -> str:
    Image.fromarray(picture).save(name)
    return name


def read(path: str | Path) -> np.ndarray:
    with Image.open(path) as opened:
        return np.array(opened)


def files(folder: str) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file())


def wide(seed: int = 0) -> np.ndarray:
    """A color photograph of 16×24 pixels."""
    return np.random.default_rng(seed).integers(0, 255, (16, 24, 3), dtype=np.uint8)


def test_strokes_to_images(command, runs):
    save("ramp.png", pixels(3)[2, 0])
    save("wide.png", wide())
    code, out, err = command(
        "edit", runs("heat"), "ramp.png", "wide.png", "--strokes", 3, "--t", "0.5,1.0", "-n", 2, "--seed", 4,
        "--steps", 5, "--out", "made", "--figure", "f.png", *CPU,
    )  # fmt: skip
    assert code == 0, err
    assert "wide.png: 16×24 pixels (height×width), cut around the center and resized to the model's 8×8" in out
    assert "wide.png: color made grayscale" in out
    assert "edit at t = 0.5 (strength 0." in out
    assert "8 of 8 results made: 40 network evaluations" in out
    assert out.splitlines()[-2:] == ["wrote made", "wrote f.png"]
    results = [f"t{t}/{name}-{seed:04d}.png" for t in ("0.5", "1") for name in ("ramp", "wide") for seed in (4, 5)]
    inputs = [f"{folder}/{name}.png" for folder in ("input", "strokes") for name in ("ramp", "wide")]
    assert files("made") == sorted(["edit.json", *results, *inputs])
    assert np.array_equal(read("made/input/ramp.png"), pixels(3)[2, 0])
    assert len(np.unique(read("made/strokes/ramp.png"))) == 3
    assert not np.array_equal(read("made/t1/ramp-0004.png"), read("made/t1/ramp-0005.png"))
    near, far = (
        np.abs(read(f"made/{t}/ramp-0004.png").astype(float) - read("made/strokes/ramp.png")).mean()
        for t in ("t0.5", "t1")
    )
    assert 0 < near < far
    protocol = json.loads(Path("made/edit.json").read_text())
    assert protocol["strokes"] == "k-means, 3 colors, position 0, smooth 0"
    assert set(protocol["pictures"]) == {"ramp", "wide"}
    assert 0 < protocol["strengths"]["0.5"] < protocol["strengths"]["1"] < 1
    assert Image.open("f.png").size[0] > 6 * 160


def test_a_finished_result_is_kept_and_the_rest_is_made(command, refused, runs):
    save("ramp.png", pixels(3)[2, 0])
    words = ["edit", runs("heat"), "ramp.png", "--strength", 0.5, "--steps", 5, "--out", "made", *CPU]
    assert command(*words, "-n", 3)[0] == 0
    (folder,) = [p for p in Path("made").iterdir() if p.name.startswith("t")]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "ramp-0001.png").write_bytes(before["ramp-0001.png"][:40])  # cut off by a crash
    code, out, _ = command(*words, "-n", 4)
    assert code == 0
    assert "continuing: 2 of 4 results are already in made" in out
    assert "2 of 4 results made" in out
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(after) == 4
    assert {name: after[name] for name in before} == before
    save("other.png", pixels(3)[1, 0])
    for change, says in ((["--steps", 6], "steps"), (["--repeats", 2], "repeats"), ([], "pictures.ramp")):
        if not change:
            shutil.copy("other.png", "ramp.png")
        refused(*words, *change, says=f"made holds other edits: {says} was")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == after


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "expected keys and values, got list"),
        ('{"format": "anisodiff edits", "version": 2}', "has edits version 2, expected 3"),
        ('{"format": "anisodiff edits", "version": 3, "strengths": 1}', "strengths: got 1, expected keys and values"),
    ],
)
def test_a_malformed_record_is_one_line(refused, runs, text, says):
    save("ramp.png", pixels(3)[2, 0])
    Path("made").mkdir()
    Path("made/edit.json").write_text(text)
    refused("edit", runs("heat"), "ramp.png", "--t", 0.5, "--steps", 4, "--out", "made", *CPU, says=says)
    assert files("made") == ["edit.json"]


def test_no_space_left_is_one_line_and_nothing_is_lost(command, refused, runs, monkeypatch):
    save("ramp.png", pixels(3)[2, 0])
    words = ["edit", runs("heat"), "ramp.png", "--t", 0.5, "--steps", 4, "-n", 5, "--out", "made", *CPU]
    replace, written = Path.replace, []

    def full(source, target):
        if Path(target).parent.name == "t0.5":
            written.append(target)
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        says = "No space left on device; 3 finished images are kept there: make room and run the same"
        refused(*words, says=says)
    assert len(list(Path("made/t0.5").iterdir())) == 3
    code, out, _ = command(*words)
    assert code == 0
    assert "2 of 5 results made" in out


def test_a_mask_and_repeats_and_json(command, runs):
    picture = pixels(3)[2, 0]
    save("ramp.png", picture)
    mask = np.zeros((16, 16), np.uint8)
    mask[:, 8:] = 255
    save("mask.png", mask)
    code, out, err = command(
        "edit", runs("anisotropic"), "ramp.png", "--mask", "mask.png", "--strength", "0.6", "--repeats", 2,
        "--paint", "strokes(colors=2, smooth=1, position=0.3)", "--steps", 12, "--out", "made", "--json", *CPU,
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)
    assert facts["notes"] == ["mask.png: mask of 16×16 resized to 8×8"]
    assert facts["nfe"] == 24
    (result,) = facts["results"]
    made = read(result["file"])
    assert np.array_equal(made[:, :4], picture[:, :4])
    assert (made[:, 4:] != picture[:, 4:]).mean() > 0.5
    painted = read("made/strokes/ramp.png")
    assert np.array_equal(painted[:, :4], picture[:, :4])
    assert len(np.unique(painted[:, 4:])) <= 2
    error = np.sqrt(np.mean((made / 255 - painted / 255) ** 2))
    assert result["rmse"] == pytest.approx(error, abs=5e-3)  # strokes are not rounded to bytes


def test_a_sweep_is_drawn_and_listed(command, runs):
    save("ramp.png", pixels(3)[2, 0])
    code, out, err = command(
        "edit", runs("ve"), "ramp.png", "--strokes", 2, "--sweep", "s.png", "--steps", 4, "--out", "made", "--json",
        *CPU,
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)
    points = facts["sweep"]["points"]
    assert len(points) == 8
    assert [p["rmse"] for p in points] == sorted(p["rmse"] for p in points)
    assert json.loads(Path("s.png.json").read_text()) == facts["sweep"]
    assert facts["written"] == ["made", "s.png"]
    assert all(p["noise_level"] == pytest.approx(p["strength"] / (1 - p["strength"])) for p in points)
    assert list(facts["strengths"].values()) == [pytest.approx(0.7, abs=1e-3)]
    assert list(facts["noise_levels"].values()) == [pytest.approx(0.7 / 0.3, abs=0.02)]
    assert "strength 0.70: the default" in err
    assert Image.open("s.png").size[0] > 1000


def test_a_sweep_may_lie_beside_the_results(command, refused, runs):
    save("ramp.png", pixels(3)[2, 0])
    words = ["edit", runs("ve"), "ramp.png", "--sweep", "made/s.png", "--steps", 3, "--out", "made", *CPU]
    for made in (1, 0):
        code, out, err = command(*words)
        assert code == 0, err
        assert f"{made} of 1 results made" in out
    assert {"edit.json", "s.png", "s.png.json"} < set(files("made"))
    more = ("--sweep", "other.png", "--strength", 0.5, "--repeats", 2)
    refused(*words, *more, says="made holds other edits: repeats was 1, now 2")
    assert not Path("other.png").exists()  # refused before the sweep


def test_a_mask_that_keeps_less_than_it_seems_is_said(command, runs):
    save("ramp.png", pixels(3)[2, 0])
    clear = np.zeros((8, 8, 2), np.uint8)  # white strokes on nothing, as painting programs make them
    clear[2:4] = 255
    save("clear.png", clear)
    save("white.png", np.full((8, 8), 255, np.uint8))
    words = ["edit", runs("heat"), "ramp.png", "--t", "0.4", "--steps", 3, *CPU]
    code, out, err = command(*words, "--mask", "clear.png", "--out", "a")
    assert code == 0, err
    assert "clear.png: where the mask is transparent it counts as white, and is edited" in out
    assert "clear.png: the mask is white everywhere: nothing is kept" in out
    code, out, _ = command(*words, "--mask", "white.png", "--out", "b")
    assert "white.png: the mask is white everywhere: nothing is kept" in out
    assert "transparent" not in out


def test_an_edit_that_is_stopped_says_what_is_kept(command, runs, monkeypatch):
    save("ramp.png", pixels(3)[2, 0])
    words = ["edit", runs("heat"), "ramp.png", "--t", "0.4", "--steps", 3, "-n", 3, "--out", "made", *CPU]
    replace = Path.replace

    def stop(source, target):
        if Path(target).name == "ramp-0002.png":
            raise KeyboardInterrupt
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", stop)
        code, out, _ = command(*words)
    assert code == 130
    assert out.splitlines()[-1] == "stopped: finished results are kept; the same command makes the rest"
    assert len(list(Path("made/t0.4").glob("*.png"))) == 2
    assert "1 of 3 results made" in command(*words)[1]


def test_checkpoints_are_compared_at_equal_strength(command, runs):
    save("ramp.png", pixels(3)[2, 0])
    code, out, err = command(
        "edit", runs("heat"), "ramp.png", "--also", runs("ve"), "--also", runs("anisotropic"), "--strength", 0.5,
        "--steps", 12, "--strokes", 3, "--figure", "f.png", *CPU,
    )  # fmt: skip
    assert code == 0, err
    lines = [line for line in out.splitlines() if "edit at t =" in line]
    assert [line.split()[0] for line in lines] == ["heat", "ve", "anisotropic"]
    assert all("(strength 0.50, σ/σ_data = " in line for line in lines)
    assert len({line.split("t = ")[1].split()[0] for line in lines}) == 3  # three times, one strength
    assert Image.open("f.png").size[0] > 5 * 270
    assert files("edits") == sorted(["edit.json", "input/ramp.png", "strokes/ramp.png", files("edits")[-1]])
    code, out, _ = command("edit", runs("heat"), "ramp.png", "--also", runs("heat"), "--t", "0.3", "--steps", 4,
                           "--figure", "g.png", "--out", "b", *CPU)  # fmt: skip
    assert code == 0
    assert out.count("edit at t = 0.3 ") == 2


def test_restoring(command, runs, data):
    """A noisy picture comes back less noisy; the mean of eight draws is better than one."""
    clean = data.images[3, 0].astype(float) / 255
    noisy = clean + 0.1 * np.random.default_rng(0).normal(size=clean.shape)
    save("noisy.png", (255 * noisy.clip(0, 1)).round().astype(np.uint8))
    t = 2 * np.log(0.1 / 0.01) / np.log(5000)  # σ(t) = 0.1
    words = ["--restore", "--t", f"{t:.3f}", "-n", 8, "--steps", 12, "--figure", "f.png", *CPU]
    code, out, err = command("edit", runs("ve"), "noisy.png", *words)
    assert code == 0, err
    assert f"restore from t = {float(f'{t:.3f}'):g}" in out
    error = [np.mean((read(path) / 255 - clean) ** 2) for path in sorted(Path("edits").glob("t*/noisy*.png"))]
    assert len(error) == 9
    single, mean = np.mean(error[1:]), error[0]  # tT-mean sorts before tT
    assert mean < single < np.mean((read("noisy.png") / 255 - clean) ** 2)
    assert mean < 0.6 * np.mean((read("noisy.png") / 255 - clean) ** 2)


def test_transparency_folders_and_equal_names(command, runs):
    Path("shelf").mkdir()
    Path("other").mkdir()
    clear = np.full((8, 8, 4), 255, np.uint8)
    clear[..., :3] = 30
    clear[:, 4:, 3] = 0
    save("shelf/a.png", clear)
    save("shelf/b.png", pixels(1)[0, 0])
    save("other/a.png", pixels(2)[1, 0])
    Path("shelf/notes.txt").write_text("no picture")
    code, out, err = command("edit", runs("heat"), "shelf", "other/a.png", "--t", 0.4, "--steps", 4, *CPU)
    assert code == 0, err
    assert "shelf/a.png: transparency laid over white" in out
    assert [p.name for p in sorted(Path("edits/input").iterdir())] == ["a-000.png", "a-002.png", "b.png"]
    seen = read("edits/input/a-000.png")
    assert (seen[:, :4] == 30).all()
    assert (seen[:, 4:] == 255).all()


def test_pictures_changed_in_the_same_way_are_one_line(command, runs):
    Path("shelf").mkdir()
    for number in range(3):
        save(f"shelf/{number}.png", wide(number))
    code, out, err = command("edit", runs("heat"), "shelf", "--t", 0.4, "--steps", 2, *CPU)
    assert code == 0, err
    assert out.splitlines()[:2] == [
        "shelf/0.png: 16×24 pixels (height×width), cut around the center and resized to the model's 8×8; "
        "likewise 2 more images",
        "shelf/0.png: color made grayscale; likewise 2 more images",
    ]


def test_a_result_depends_on_no_other_even_with_pc(command, runs):
    save("ramp.png", pixels(3)[2, 0])
    words = ["edit", runs("ve"), "ramp.png", "--t", 0.5, "--steps", 6, "--sampler", "pc", *CPU]
    assert command(*words, "-n", 1, "--out", "one")[0] == 0
    assert command(*words, "-n", 3, "--out", "three")[0] == 0
    assert Path("one/t0.5/ramp-0000.png").read_bytes() == Path("three/t0.5/ramp-0000.png").read_bytes()
    assert json.loads(Path("three/edit.json").read_text())["batch"] == 1


GOOD = ["edit", "good", "ramp.png"]
MISTAKES = [
    (["edit", "nowhere", "ramp.png"], "no such folder: nowhere"),
    (["edit", "lacking", "ramp.png"], "model.safetensors is missing"),
    (["edit", "newer", "ramp.png"], "has checkpoint version 3, expected 2"),
    (["edit", "good", "none.png"], "no such file: none.png"),
    (["edit", "good", "letter.txt"], "letter.txt cannot be used: not an image; expected PNG, JPEG"),
    (["edit", "good", "cut.png"], "cut.png cannot be used: image file is truncated"),
    (["edit", "good", "bare"], "bare holds no images"),
    ([*GOOD, "--t", "0"], "t: got 0, expected a time in (t_min, T] = (0.02, 2]"),
    ([*GOOD, "--t", "2.5"], "t: got 2.5"),
    ([*GOOD, "--t", "0.02"], "t: got 0.02"),
    ([*GOOD, "--t", "0.5,3"], "t: got 3"),
    ([*GOOD, "--t", "early"], "--t: got 'early', expected a number, or several like 0.4,0.8"),
    ([*GOOD, "--t", "nan"], "--t expects finite numbers"),
    ([*GOOD, "--t", "1", "--strength", "0.5"], "give one of them"),
    ([*GOOD, "--strength", "1.2"], "strength: got 1.2, expected a number in"),
    ([*GOOD, "--candidates", "0"], "--candidates: got 0, expected 1 to 100,000"),
    ([*GOOD, "--candidates", "2000000000"], "--candidates: got 2000000000, expected 1 to 100,000"),
    ([*GOOD, "--seed", str(2**62 - 1), "--candidates", "2"], f"seeds must lie below 2^62, got {2**62}"),
    ([*GOOD, "--repeats", "0"], "--repeats: got 0"),
    ([*GOOD, "--steps", "0"], "steps: got 0"),
    ([*GOOD, "--strokes", "0"], "'--strokes': got '0', expected a number greater than or equal to 1"),
    ([*GOOD, "--paint", "strokes(3, position=-1)"], "position: got -1"),
    ([*GOOD, "--sampler", "eulre"], "did you mean 'euler'"),
    ([*GOOD, "--mask", "none.png"], "no such file: none.png"),
    ([*GOOD, "--mask", "letter.txt"], "not an image"),
    ([*GOOD, "--mask", "black.png"], "the mask is black and keeps every pixel"),
    ([*GOOD, "--mask", "wide.png"], "the mask has 16×24 pixels, ramp has 8×8"),
    ([*GOOD, "--restore"], "--restore needs --t or --strength"),
    ([*GOOD, "--restore", "--t", "1", "--strokes", "3"], "drop --strokes, --paint, --repeats and --sweep"),
    ([*GOOD, "--figure", "f.jpg"], "--figure must end in .png"),
    ([*GOOD, "--figure", "ramp.png"], "--figure ramp.png is one of the pictures given, and would overwrite it"),
    ([*GOOD, "--sweep", "./ramp.png"], "is one of the pictures given, and would overwrite it"),
    ([*GOOD, "--mask", "black.png", "--figure", "black.png"], "--figure black.png is one of the pictures given"),
    (["edit", "good", ".", "--figure", "f.png"], "--figure f.png would lie among the pictures and be read as one"),
    ([*GOOD, "--sweep", "s.txt"], "--sweep must end in .png"),
    ([*GOOD, "--figure", "a.png", "--sweep", "a.png"], "two of them are the same"),
    ([*GOOD, "--also", "good"], "give --figure FILE.png, too"),
    ([*GOOD, "--also", "nowhere", "--figure", "f.png"], "no such folder: nowhere"),
    ([*GOOD, "--also", "shorter", "--figure", "f.png", "--t", "1.5"], "(shorter): t: got 1.5"),
    ([*GOOD, "--out", "taken"], "taken holds files that are not edits"),
    ([*GOOD, "--out", "ramp.png"], "ramp.png is a file"),
    ([*GOOD, "--device", "tpu"], "unknown device"),
]


@pytest.fixture(scope="module")
def shelf(runs, data, tmp_path_factory):
    """A folder with everything that can be wrong."""
    from anisodiff.training import train
    from tests.training.conftest import tiny

    place = tmp_path_factory.mktemp("shelf")
    spoil(find(runs("heat")).path, place)
    train(tiny(process={"preset": "heat", "T": 1.0}, images=4), data, place / "shorter", track=())
    save(place / "ramp.png", pixels(3)[2, 0])
    save(place / "wide.png", wide())
    save(place / "black.png", np.zeros((8, 8), np.uint8))
    (place / "cut.png").write_bytes((place / "wide.png").read_bytes()[:300])
    (place / "letter.txt").write_text("mine")
    (place / "bare").mkdir()
    return place


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_mistakes_are_one_clear_line_and_leave_nothing(refused, shelf, monkeypatch, words, says):
    monkeypatch.chdir(shelf)
    before = sorted(str(p) for p in shelf.rglob("*"))
    refused(*words, *([] if "--device" in words else CPU), says=says)
    assert sorted(str(p) for p in shelf.rglob("*")) == before
