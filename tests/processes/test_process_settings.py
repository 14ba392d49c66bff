"""Settings of a process: presets, overrides, what is refused (what every process must do: test_processes.py)."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anisodiff
from anisodiff.io.records import read_config
from anisodiff.processes import presets
from anisodiff.processes.config import KEYS, check_keys
from tests.processes.test_processes import image
from tests.support.oracles import F64, generator


def test_presets_have_the_papers_numbers():
    identity = anisodiff.process("anisotropic", 64).identity()
    assert identity["diffusivity"] == "geometric(0.5, 128)"
    assert identity["intensity"] == "geometric(0.01, 2)"
    assert identity["drift_anisotropy"] == "exponential(0.025, k=0.5)"
    assert identity["noise_anisotropy"] == "infinite"
    assert identity["T"] == 2.0
    assert anisodiff.process("heat", 64).identity()["intensity"] == "geometric(0.01, 0.5)"
    paper = anisodiff.process("anisotropic-paper", 64).identity()
    assert (paper["stencil"], paper["step"]) == ("paper", "tamed(dt=0.01, gamma=1, norm=image)")
    assert len(presets.GALLERY) == 5
    assert len(presets.DESIGN) == 12
    assert all(anisodiff.process(name, 128).T == 8.0 for name in presets.DESIGN)


def test_ve_keeps_its_noise_levels_for_any_horizon():
    x0 = image(1, 1, 4, 4, dtype=F64)
    for T in (1.0, 2.0, 5.0):
        process = anisodiff.process("ve", 4, T=T, sigma_min=0.02, sigma_max=90)
        assert process.variance(x0, 0.0, T)[0, 0, 0, 0].item() == pytest.approx(90**2 - 0.02**2)
    with pytest.raises(ValueError, match="sigma_max: only ve and anisotropic-gentle and cartoon have it"):
        anisodiff.process("heat", 4, sigma_max=90)
    for name, keys, message in (
        ("ve", {"sigma_max": 0.001}, "sigma_max: got 0.001, expected a finite number above sigma_min = 0.01"),
        ("ve", {"sigma_min": -1}, "sigma_min: got -1, expected a finite number above 0"),
        ("anisotropic-gentle", {"T": 0}, "T: got 0, expected a finite number above 0"),
        ("cartoon", {"T": "inf"}, "T: got inf, expected a finite number above 0"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            anisodiff.process(name, 4, **keys)


def test_the_default_is_ve_with_a_mild_smoothing():
    for size, sigma_max, lam in ((8, 50, "0.05"), (32, 50, "0.05"), (64, 100, "0.025"), (256, 400, "0.00625")):
        ours, ve = (anisodiff.process(name, size).identity() for name in ("anisotropic-gentle", "ve"))
        assert {key for key in ours if ours[key] != ve[key]} == {"diffusivity", "drift_anisotropy", "step"}
        assert (ours["diffusivity"], ours["drift_anisotropy"]) == ("geometric(0.5, 0.001)", lam)
        x0 = image(1, 1, 4, 4, dtype=F64)
        spread = anisodiff.process("ve", size).variance(x0, 0.0, 2.0)[0, 0, 0, 0].item()
        assert spread == pytest.approx(sigma_max**2 - 1e-4)
    own, same = (anisodiff.process(name, 8, T=1.0, sigma_max=9) for name in ("anisotropic-gentle", "ve"))
    assert own.identity()["intensity"] == same.identity()["intensity"]


def test_compiling_is_a_switch_outside_the_identity():
    plain, off, on = (
        anisodiff.process("anisotropic", 8, step=f"exponential(windows=4{text})")
        for text in ("", ", compile=False", ", compile=true")
    )
    assert plain == off == on
    assert (off.step.compile, on.step.compile) == (False, True)
    assert plain.identity() == on.identity()
    with pytest.raises(ValueError, match="true or false"):
        anisodiff.process("anisotropic", 8, step="exponential(compile=maybe)")


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("anisotropik", {}, "did you mean 'anisotropic'"),
        ("anisotropic", {"difusivity": 1}, "did you mean 'diffusivity'"),
        ("anisotropic", {"diffusivity": -1}, "≥ 0"),
        ("anisotropic", {"noise_anisotropy": 0.1}, "noise_anisotropy='infinite' or step='tamed'"),
        ("anisotropic", {"correlation_length": 2}, "correlation_length=0, or step='signal' or 'tamed'"),
        ("anisotropic", {"stencil": "paper"}, "stencil='flux'"),
        ("anisotropic", {"step": "exact"}, "step='exponential'"),
        ("heat", {"noise_anisotropy": 0.1}, "step='tamed'"),
        ("heat", {"stencil": "paper"}, "stencil='flux'"),
        ("heat", {"stencil": "spectral"}, "unknown stencil"),
        ("heat", {"step": "heun"}, "unknown step 'heun'; valid: tamed"),
        ("heat", {"step": "tamed(h=0.1)"}, "no 'h'"),
        ("heat", {"T": 0}, "T must be"),
        ("heat", {"T": "long"}, "expected a number"),
        ("heat", {"correlation_length": math.inf}, "finite"),
        ("heat", {"drift_anisotropy": 0}, "> 0"),
    ],
)
def test_contradictions_are_refused_by_naming_what_to_change(name, overrides, says):
    with pytest.raises(ValueError, match=says):
        anisodiff.process(name, 32, **overrides)


@pytest.mark.parametrize("size", [2, 0, -5, 3.5, "32", True])
def test_sizes_are_checked(size):
    with pytest.raises(ValueError, match="whole number"):
        anisodiff.process("heat", size)


garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
almost = st.sampled_from(
    [
        "geometric(1,",
        "exponential(0.1, k=-1)",
        "tamed(dt=nan)",
        "power(1,2,0)",
        "exact",
        "1e999",
        "()",
        "zero(1)",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), garbage | almost, max_size=4))
def test_garbage_in_a_config_is_a_value_error_or_a_process(content):
    """Never another exception: a user's mistake is one line."""
    try:
        anisodiff.process("anisotropic", 8, **check_keys(content, KEYS, "config"))
    except ValueError as error:
        assert str(error)
        assert "\n" not in str(error)[:60]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda s: s.encode("utf-8", "ignore")))
def test_garbage_in_a_config_file_is_a_value_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("config") / "c.yaml"
    path.write_bytes(content)
    try:
        given_keys = check_keys(read_config(path), KEYS, "config")
        anisodiff.process("anisotropic", 8, **given_keys)
    except ValueError as error:
        assert str(error)


extremes = st.sampled_from(
    ["geometric(1e300, 1e-300)", "geometric(1e-12, 1e12)", "1e200", "power(0, 1e12, 9)", "1e-300", "tamed(dt=1e-3)",
     "exponential(1e-12, k=1e12)", "exponential(windows=1)", "1e12", "inf", "zero", "exact", "tamed(dt=2)"]
)  # fmt: skip


class Nodeless:
    def nodes(self, equation):
        return ()


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), extremes, max_size=3))
def test_extreme_but_valid_settings_can_be_simulated_or_are_refused(content):
    try:
        process = anisodiff.process("anisotropic", 8, **content)
    except ValueError as error:
        assert str(error)
        return
    if len(getattr(process, "step", Nodeless()).nodes(process.equation)) < 3000:
        u = process.draw(image(1, 1, 3, 3, dtype=F64), process.T, generator())
        assert u.shape == (1, 1, 3, 3)
