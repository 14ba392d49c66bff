"""What every process must do; one table, all shared tests. A new process adds one row.

Presets, overrides and refusals: test_process_settings.py.
"""

import json
import math

import pytest
import torch
from scipy.stats import ks_2samp

import anisodiff
import anisodiff.stencils
from anisodiff.processes import presets
from anisodiff.processes.config import KEYS, ProcessConfig
from anisodiff.registry import PRESETS, PROCESSES
from tests.support.oracles import F64, generator

EQUATIONS = [
    *((name, {}) for name in PRESETS),
    *((name, {}) for name in presets.GALLERY),
    *((name, {}) for name in presets.DESIGN if name not in ("design-4b", "design-4c")),
    ("design-4b", {"step": "tamed(dt=0.1)"}),
    ("design-4c", {"step": "tamed(dt=0.1)"}),
    ("anisotropic", {"step": "tamed(dt=0.02, gamma=2, norm=rms)", "correlation_length": 1.5}),
    ("anisotropic", {"step": "exponential(windows=3)"}),
    ("anisotropic", {"step": "signal(windows=3)", "correlation_length": 0.7}),
    ("heat", {"diffusivity": "power(0, 8, 2.5)", "correlation_length": 1.0}),
    ("heat", {"diffusivity": "cutoff(2, 0.8)"}),
    ("anisotropic", {"diffusivity": "cutoff(2, 0.8, r=3)", "step": "exponential(windows=2)"}),
    ("ve", {"condition": "median(radius=1)"}),
]
"""Rows that solve the SPDE, with any coefficients."""
TABLE = [
    *((name, {}) for name in PROCESSES),
    ("heat-dissipation", {"levels": 7, "blur_min": 0.3, "blur_max": 3, "noise": 0.05}),
    ("edge-preserving", {"levels": 40, "lambda_min": 0.01, "boundary": "replicate", "transition": 0.3}),
]


def rows(table):
    return pytest.mark.parametrize(("name", "overrides"), table, ids=[f"{n}-{len(o)}" for n, o in table])


every_equation, every_process = rows(EQUATIONS), rows(EQUATIONS + TABLE)


def noisy(process) -> bool:
    return not hasattr(process, "equation") or process.equation.noisy


def image(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@every_process
@pytest.mark.parametrize("shape", [(3, 1, 3, 3), (3, 3, 5, 8), (3, 4, 9, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_any_shape_channels_precision_and_times(name, overrides, shape, dtype):
    process = anisodiff.process(name, 8, **overrides)
    t = torch.tensor([0.0, 0.37 * process.T, process.T])
    x0 = image(*shape, dtype=dtype)
    kept = x0.clone()
    u = process.draw(x0, t, generator())
    assert u.shape == x0.shape
    assert u.dtype == dtype
    assert torch.isfinite(u).all()
    # nothing has happened at t = 0 (but the rounding of a DCT)
    torch.testing.assert_close(u[0], x0[0], rtol=0, atol=8 * torch.finfo(dtype).eps)
    assert torch.equal(x0, kept)


@every_process
def test_same_seed_same_state_and_other_seed_other_state(name, overrides):
    process = anisodiff.process(name, 8, **overrides)
    x0 = image(2, 1, 6, 6)
    first, again = (process.draw(x0, process.T, generator(5)) for _ in range(2))
    assert torch.equal(first, again)
    if noisy(process):
        assert not torch.allclose(first, process.draw(x0, process.T, generator(6)))


@every_process
def test_a_path_has_the_distribution_of_draws(name, overrides):
    """At a time inside a step, reached directly and along a path with stops before it: two-sample KS per pixel."""
    process = anisodiff.process(name, 8, **overrides)
    x0 = image(1, 1, 3, 4, dtype=F64).expand(1500, 1, 3, 4)
    t = 0.437 * process.T
    path = process.path(x0, [0.0, 0.12 * process.T, t, t, process.T], generator(1))
    assert len(path) == 5
    torch.testing.assert_close(path[0], x0, rtol=0, atol=1e-14)
    torch.testing.assert_close(path[2], path[3], rtol=0, atol=1e-12)
    for when, state in ((t, path[2]), (process.T, path[4])):
        direct = process.draw(x0, when, generator(2))
        if not noisy(process):
            torch.testing.assert_close(state, direct, rtol=0, atol=1e-6)
            continue
        pixels = zip(state.flatten(1).mT.numpy(), direct.flatten(1).mT.numpy())
        assert min(ks_2samp(a, b).pvalue for a, b in pixels) > 0.01 / 24


@every_equation
def test_channels_and_samples_do_not_mix(name, overrides):
    """Without noise and without a norm over the whole image, every channel evolves by itself."""
    step = overrides.get("step", presets.preset(name, 8)["step"])
    if "tamed" in step:
        step = "tamed(dt=0.05, norm=element)"
    process = anisodiff.process(name, 8, **{**overrides, "intensity": 0.0, "step": step})
    x0 = image(2, 3, 5, 5, dtype=F64)
    together = process.draw(x0, process.T)
    alone = process.draw(x0[1:, 2:], process.T)
    torch.testing.assert_close(together[1:, 2:], alone, rtol=0, atol=1e-13)


@every_equation
def test_identity_is_plain_and_rebuilds_the_process(name, overrides):
    process = anisodiff.process(name, 8, **overrides)
    identity = json.loads(json.dumps(process.identity()))
    assert (*identity, *(() if process.conditional else ("condition",))) == KEYS
    assert ProcessConfig(**identity).build() == process
    assert anisodiff.process(name, 8, **{**overrides, "T": 1.25}).identity() != identity


@every_process
def test_times_outside_are_refused(name, overrides):
    process = anisodiff.process(name, 8, **overrides)
    x0 = image(2, 1, 4, 4)
    for t in (-0.1, process.T * 1.01, float("nan"), torch.tensor([0.1, 99.0])):
        with pytest.raises(ValueError, match=r"\[0, T\]"):
            process.draw(x0, t)
    with pytest.raises(ValueError, match="one per sample"):
        process.draw(x0, torch.zeros(3))
    with pytest.raises(ValueError, match="decrease"):
        process.path(x0, [0.2, 0.1])


def test_no_drift_is_pure_noise():
    """α1 → 0: the anisotropic equation becomes Song's, whatever λ1."""
    common = {"diffusivity": 0.0, "intensity": "geometric(0.01, 2)"}
    x0 = image(1, 1, 8, 8, dtype=F64)
    exact = anisodiff.process("ve", 8, **common)
    many = anisodiff.process("anisotropic", 8, **common).draw(x0.expand(3000, 1, 8, 8), 2.0, generator(2))
    assert (many - x0).var().item() == pytest.approx(exact.variance(x0, 0.0, 2.0).mean().item(), rel=0.01)


def test_times_at_the_horizon_survive_rounding():
    process = anisodiff.process("anisotropic", 8, T=0.3)
    x0 = image(2, 1, 4, 4)
    for t in (torch.full((2,), 0.3), torch.tensor([0.3, 0.3 * (1 + 1e-13)], dtype=F64)):
        assert torch.isfinite(process.draw(x0, t, generator())).all()
        assert torch.isfinite(process.training_pair(x0, t, generator()).target).all()


def test_tables_do_not_remember_how_they_were_made():
    """Made under inference mode or another default device, they must serve autograd on the CPU later."""
    process = anisodiff.process("anisotropic", 7, T=1.9)
    with torch.inference_mode():
        process.draw(image(1, 1, 7, 7), 1.9, generator())
    x0 = image(1, 1, 7, 7).requires_grad_()
    process.draw(x0, 1.9, generator()).sum().backward()
    assert torch.isfinite(x0.grad).all()
    torch.set_default_device("meta")
    try:
        other = anisodiff.process("anisotropic", 7, T=1.7)
        u = other.draw(x0.detach(), 1.7, generator())
        exact = anisodiff.process("heat", 7, T=1.7).draw(x0.detach(), 1.7, generator())
    finally:
        torch.set_default_device("cpu")
    assert u.device.type == exact.device.type == "cpu"


def test_images_that_are_not_finite_are_refused():
    for name in ("heat", "anisotropic", "anisotropic-paper"):
        process = anisodiff.process(name, 4)
        x0 = image(1, 1, 4, 4)
        x0[0, 0, 1, 1] = math.nan
        with pytest.raises(ValueError, match="NaN"):
            process.draw(x0, 1.0)
        with pytest.raises(ValueError, match="NaN"):
            process.path(x0, [1.0])


def test_closed_forms_check_their_states():
    with pytest.raises(ValueError, match="float"):
        anisodiff.process("heat", 8).mean(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), 0.0, 1.0)
    with pytest.raises(ValueError, match="shape"):
        anisodiff.process("heat", 8).variance(image(1, 4, 4), 0.0, 1.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@rows([*((name, {}) for name in PRESETS), ("anisotropic", {"step": "signal"})])
def test_steps_never_wait_for_the_gpu(name, overrides):
    """Two looks at values before the first step are allowed; a step itself may not synchronize."""
    process = anisodiff.process(name, 8, **overrides)
    x0, source = image(2, 1, 8, 8).cuda(), torch.Generator("cuda").manual_seed(0)
    want = process.draw(x0, process.T, source)  # also fills the caches
    assert torch.isfinite(want).all()
    if hasattr(process, "step"):
        s, e = (torch.full((2,), v, dtype=F64, device="cuda") for v in process.step.nodes(process.equation)[:2])
        drift = anisodiff.stencils.STENCILS[process.stencil]
        torch.cuda.set_sync_debug_mode("error")
        try:
            process.step.freeze(process.equation, drift, x0, 0).advance(x0, torch.randn_like(x0), s, e)
        finally:
            torch.cuda.set_sync_debug_mode("default")
