"""The designer: settings and their lines, the spectrum against closed forms, equal noise levels, exports."""

import io
import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import anisodiff
from anisodiff.registry import FIGURES, PRESETS, build_process
from anisodiff.studio import design
from anisodiff.studio.design import Setting, matched, plain_keys, times_of, trajectory
from anisodiff.studio.pictures import BUNDLED, KEPT, Pictures
from anisodiff.training.run_folder import read_run
from tests.studio.conftest import CLIENT, photographs

PICTURES = Pictures()


def nothing():
    pass


@pytest.mark.parametrize("name", [*PRESETS, *FIGURES])
def test_all_keys_of_a_preset_change_nothing(name):
    keys = plain_keys(name, 32)
    setting = Setting.of(name, 32, dict(keys))
    assert setting.changes == {}
    assert setting.build().identity() == build_process(name, 32, {}, "x").identity()
    again = Setting(preset=name, size=32, changes=keys)  # every key by itself gives the same law
    assert again.build().identity() == setting.build().identity()
    assert {k: design._curve(keys[k])["kind"] for k in design.COEFFICIENTS}


def test_the_lines_build_the_same_process(tmp_path, command):
    setting = Setting.of(
        "anisotropic", 16, {"intensity": "geometric(0.01, 3)", "T": 1.5, "step": "exponential(windows=4)"}
    )
    expected = setting.build().identity()
    assert eval(setting.python(), {"anisodiff": anisodiff}).identity() == expected
    (tmp_path / "process.yaml").write_text(setting.yaml(), encoding="utf-8")
    run = read_run(tmp_path / "process.yaml")
    assert run.config.size == (16, 16)
    assert (
        build_process(
            run.config.process["preset"], 16, {k: v for k, v in run.config.process.items() if k != "preset"}, "x"
        ).identity()
        == expected
    )
    assert yaml.safe_load(setting.yaml())["process"]["T"] == 1.5
    photographs(tmp_path / "photos", 4)
    train = setting.yaml().splitlines()[0].removeprefix("# anisodiff ")
    code, out, err = command(*shlex.split(train), "--dry-run", "--json", "--device", "cpu")
    assert code == 0, err
    assert "picked for up to 4 images on cpu: 16×16" in err
    picked = json.loads(out)
    assert picked["process"] == expected
    assert (picked["config"]["network"]["name"], picked["config"]["images"]) == ("tiny", 400_000)
    words = shlex.split(setting.command(None, 0))
    code, out, err = command(*words[1:], "--output", "figure.png")
    assert (code, err) == (0, "")
    assert out == "wrote figure.png\n"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"T": math.nan}, "expected a number, got nan"), ({"intensity": "nan"}, "got nan"),
        ({"T": -1}, "T: got -1, expected a finite number above 0"),
        ({"intensity": "geometric(0, 1)"}, "must be finite and > 0"),
        ({"step": "tamed(dt=0.000001)"}, "at most 1,000,000"),
        ({"step": "tamed(dt=0.0001)"}, "at most 1,000"), ({"stencil": "x"}, "unknown stencil"),
        ({"speed": 1}, "unknown key"),
        ({"drift_anisotropy": 0.1, "diffusivity": 1, "step": "exact"}, "needs an isotropic drift"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(keys, says):
    with pytest.raises(ValueError, match=says) as caught:
        Setting.of("ve", 32, keys).build()
    assert "\n" not in str(caught.value)


def test_the_spectrum_of_plain_noise_is_that_of_the_picture_over_its_variance():
    """`ve` on the picture: S/N of band k is the mean of |x̂|² there, over σ²."""
    image, process = PICTURES.get("photograph", (64, 64)), Setting.of("ve", 64, {}).build()
    times = times_of(process)
    found = trajectory(process, image, 3, times, nothing)
    band, modes = design._bands(image)
    power = design.band_sums(design.dct2(image.double() - 0.5).square().mean(0), band, design.BANDS) / modes
    for k in (5, 8, 10):
        sigma2 = float(process.variance(image[None], 0.0, times[k]).mean())
        for b in range(1, design.BANDS):
            expected, chance = float(power[b]) / sigma2, 4 / math.sqrt(3 * float(modes[b]))
            assert abs(found.snr[k][b] - expected) < chance * (1 + expected + math.sqrt(expected))
    assert found.snr[0] == [None] * design.BANDS  # no noise yet
    assert found.level[0] is None


def test_the_noise_level_of_plain_noise_is_ln_sigma_over_that_of_the_picture():
    image, process = PICTURES.get("photograph", (64, 64)), Setting.of("ve", 64, {}).build()
    times = times_of(process)
    found = trajectory(process, image, 0, times, nothing)
    data = float(design.dct2(image.double() - 0.5).square().mean())
    for k in (4, 5, 6, 8, 9):
        sigma2 = float(process.variance(image[None], 0.0, times[k]).mean())
        assert found.level[k] == pytest.approx(0.5 * math.log(sigma2 / data), abs=0.15)


def test_the_second_setting_is_shown_at_equal_noise_levels():
    """The same noise at half the speed: every level is reached at twice the time."""
    image = PICTURES.get("shapes", (32, 32))
    slow, fast = (Setting.of("ve", 32, {"T": T}).build() for T in (4.0, 2.0))
    a = trajectory(fast, image, 0, times_of(fast), nothing)
    pilot = trajectory(slow, image, 0, times_of(slow), nothing)
    times = matched(pilot, a.level)
    for k in range(4, 11):
        assert times[k] == pytest.approx(2 * a.times[k], abs=0.2)
    assert times == sorted(times)
    b = trajectory(slow, image, 0, times, nothing)
    assert max(abs(x - y) for x, y in list(zip(a.level, b.level))[4:11]) < 0.3


def test_work_ends_where_nobody_waits_for_it():
    def gone():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        trajectory(Setting.of("ve", 32, {}).build(), PICTURES.get("rings", (32, 32)), 0, [0.0, 1.0], gone)


def test_pictures_are_bundled_and_kept_within_bounds():
    for name in BUNDLED:
        assert PICTURES.get(name, (24, 32)).shape == (3, 24, 32)
    store, codes = Pictures(), []
    for k in range(KEPT + 3):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 5), (k, 0, 0)).save(buffer, "PNG")
        codes.append(store.add(buffer.getvalue())[0])
    assert store.get(codes[-1], (8, 8)).shape == (3, 8, 8)
    with pytest.raises(ValueError, match="drop it again"):
        store.get(codes[0], (8, 8))
    with pytest.raises(ValueError, match="drop it again"):
        store.get("../../etc/passwd", (8, 8))


def test_the_designer_answers_with_all_it_needs(studio):
    body = {"a": {"preset": "anisotropic"}, "b": {"preset": "ve"}, "picture": "shapes", "size": 32}
    events = [e for e in studio.events("/api/design", body) if e["kind"] == "trajectory"]
    assert [e["which"] for e in events] == ["a", "b"]
    a, b = events
    with Image.open(io.BytesIO(design.base64.b64decode(a["frames"].partition(",")[2]))) as strip:
        assert strip.size == (32 * design.FRAMES, 32)
    assert len(a["times"]) == len(a["snr"]) == len(a["level"]) == design.FRAMES
    assert a["command"].startswith("anisodiff forward picture.png --process anisotropic --size 32")
    assert a["caption"].startswith("α1 = geometric(0.5, 64)")
    assert b["times"][-1] <= 2.0


def test_the_verdict_is_that_of_diagnose(studio):
    remembers = studio.events("/api/diagnose", {"a": {"preset": "heat"}, "size": 32})[-2]
    forgets = studio.events("/api/diagnose", {"a": {"preset": "ve"}, "size": 32})[-2]
    assert remembers["kind"] == forgets["kind"] == "verdict"
    assert not remembers["forgets"]
    assert remembers["verdict"].startswith("U_T depends on U_0")
    assert any("raise the intensity" in line for line in remembers["advice"])
    assert forgets["forgets"]


def test_the_page_knows_the_curves_of_every_preset():
    script = Path(design.__file__).parent / "static" / "curves.js"
    known = re.search(r"const KINDS = \{(.*?)\};", script.read_text(encoding="utf-8"), re.DOTALL).group(1)
    kinds = {name: set(re.findall(r"\w+", keys)) for name, keys in re.findall(r"(\w+): \[(.*?)\]", known)}
    for size in design.SIZES:
        for keys in design.catalog(size)["presets"].values():
            for curve in keys["curves"].values():
                assert kinds[curve["kind"]] == set(curve["values"])


def test_the_exported_figure_is_that_of_the_command(studio, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    body = {"a": {"preset": "anisotropic", "keys": {"T": 1.5}}, "picture": "shapes", "size": 32, "seed": 5}
    (tmp_path / "picture.png").write_bytes(studio.get("/api/picture", name="shapes").content)
    file = studio.events("/api/export/png", body)[-2]
    (shown,) = (e for e in studio.events("/api/design", body) if e["kind"] == "trajectory")
    code, _, err = command(*shlex.split(shown["command"])[1:])
    assert (code, err) == (0, "")
    with Image.open(io.BytesIO(design.base64.b64decode(file["data"]))) as one, Image.open("forward.png") as other:
        assert (np.asarray(one) == np.asarray(other)).all()
    assert studio.get("/api/picture", name="/etc/passwd").status_code == 400


def test_exports_are_files(studio):
    file = studio.events("/api/export/gif", {"a": {"preset": "ve"}, "size": 32})[-2]
    assert file["kind"] == "file"
    assert design.base64.b64decode(file["data"]).startswith(b"GIF8")
    assert studio.post("/api/export/exe", {"a": {"preset": "ve"}}).status_code == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"a": {"preset": "ve", "keys": {"T": "nan"}}}, "got nan"), ({"a": {"preset": "x"}}, "unknown preset"),
        ({"a": {"preset": "ve"}, "picture": "/etc/passwd"}, "not here any more"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_an_event_of_one_line(studio, body, says):
    last = studio.events("/api/design", body)[-1]
    assert last["kind"] == "error"
    assert says in last["message"]


def test_numbers_out_of_bounds_are_refused(studio):
    for body in (
        {"a": {"preset": "ve"}, "size": 10**6},
        {"a": {"preset": "ve"}, "seed": -1},
        {"a": {"preset": "ve"}, "x": 1},
    ):
        assert studio.post("/api/design", body).status_code == 422
    nan = b'{"a": {"preset": "ve", "keys": {"T": NaN}}}'
    answer = studio.post("/api/design", data=nan, **{**CLIENT, "Content-Type": "application/json"})
    assert answer.status_code == 422
    assert "finite" in answer.json()["message"]


@pytest.mark.parametrize("name", ["anisotropic-gentle", "ve", "anisotropic"])
def test_the_answer_takes_less_than_150_ms_of_a_core(name):
    """The work of the thread, whatever else the machine does, with new coefficients every time."""
    import time

    image, spent = PICTURES.get("photograph", (64, 64)), []
    for k in range(5):
        begin = time.thread_time()
        setting = Setting.of(name, 64, {"intensity": f"geometric(0.02, {2 + k / 100})"})
        process = setting.build()
        design._event("a", setting, process, trajectory(process, image, 0, times_of(process), nothing))
        spent.append(time.thread_time() - begin)
    assert min(spent) < 0.15
    assert torch.get_num_threads() == 1


def test_without_noise_one_path_tells_all(monkeypatch):
    """`design-3b` has none; its states are those of two paths, and no band has noise."""
    image, counts = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0)), []
    process = Setting.of("design-3b", 16, {}).build()
    path = type(process).path

    def counted(self, x0, times, rng=None):
        counts.append(len(x0))
        return path(self, x0, times, rng)

    monkeypatch.setattr(type(process), "path", counted)
    times = times_of(process)
    found = trajectory(process, image, 0, times, lambda: None)
    assert counts == [1]
    expected = path(process, image.expand(2, 3, 16, 16), times, torch.Generator().manual_seed(1))
    for state, pair in zip(found.states, expected):
        torch.testing.assert_close(state, pair[1], rtol=0, atol=1e-5)
    assert all(ratio is None for row in found.snr for ratio in row)
