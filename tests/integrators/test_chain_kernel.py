"""The fused tamed chain against the plain form, in Triton's interpreter where there is no GPU."""

import pytest
import torch

import anisodiff
from anisodiff.equation import Equation
from anisodiff.integrators import TamedEuler, kernels
from anisodiff.noise import KeyedNoise, ZeroNoise
from anisodiff.processes.spde import SPDE
from tests.support.gpu_kernels import (
    DEVICE,
    INTERPRETED,
    needs_compiler,
    needs_cuda,
    run_interpreted,
    runs_kernels,
    starts_interpreter,
)

KEYS = torch.tensor([5, -3, 2**62 + 1, -(2**63), 7])
ROUNDING = 2e-6
"""Of the largest state, after 12 to 50 steps. A step rounds the state by 2^-24 and adds noise that is right to 2^-22
of its size, in either form; the drift smooths errors away. Both forms were within 5e-7 of double precision."""


class StepByStep(KeyedNoise):
    """The same noise, for which there is no fused form."""


def chain(stencil="paper", noise_anisotropy="infinite", dt=0.09, T=1.0, intensity=0.3, diffusivity=3.0, **step):
    """12 steps, of which the last is a ninth as long."""
    equation = Equation(
        diffusivity=diffusivity, intensity=intensity, drift_anisotropy=0.1, noise_anisotropy=noise_anisotropy, T=T
    )
    return SPDE(equation=equation, stencil=stencil, step=TamedEuler(dt=dt, **step))


def images(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def fused(monkeypatch):
    """Fused kernels are chosen in the interpreter, too; memory that nobody wrote is NaN."""
    if INTERPRETED:
        monkeypatch.setattr(kernels, "usable", lambda *tensors: tensors[0].dtype == torch.float32)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def in_tiles(fused, monkeypatch):
    """Small images are cut into tiles of 32 values, too."""
    from anisodiff.integrators.kernels import tiles

    monkeypatch.setattr(kernels, "LARGEST_IMAGE", 0)
    monkeypatch.setattr(tiles, "_BLOCK", 32)


def same(process, x0, t, *, skip):
    """The chain's states equal the plain form's, in single and in double precision, and it takes as many draws."""
    keys, t = KEYS[: len(x0)], torch.tensor(t, dtype=torch.float64)
    one, other = KeyedNoise(keys.to(DEVICE), skip=skip), StepByStep(keys, skip=skip)
    steps = sum(s < float(t.max()) for s in process.step.nodes(process.equation))
    got = process.step.integrate(process.equation, process.stencil, x0.to(DEVICE), t.to(DEVICE), steps, one).cpu()
    want = process.draw(x0, t, other)
    exact = process.draw(x0.double(), t, StepByStep(keys, skip=skip))
    assert one.drawn == other.drawn
    assert (got - want).abs().max() < ROUNDING * exact.abs().max()
    assert (got - exact).abs().max() < ROUNDING * exact.abs().max()
    return got


@runs_kernels
@pytest.mark.parametrize("form", ["fused", "in_tiles"])
@pytest.mark.parametrize(
    ("shape", "keys"),
    [
        ((4, 3, 8, 8), {}),
        ((4, 3, 8, 8), {"noise_anisotropy": 0.2, "norm": "rms"}),
        ((4, 1, 5, 9), {"noise_anisotropy": 0.2, "gamma": 0.7}),
        ((4, 3, 9, 5), {"norm": "element", "gamma": 1.5}),
        ((4, 3, 3, 4), {"norm": "none"}),
        ((4, 3, 4, 7), {"stencil": "flux", "noise_anisotropy": 0.2}),
        ((4, 1, 8, 6), {"stencil": "flux", "norm": "rms", "gamma": 1.5}),
        ((4, 2, 3, 3), {"diffusivity": 0.0, "noise_anisotropy": 0.2}),
        ((4, 3, 4, 4), {"intensity": 0.0}),
    ],
)
def test_the_fused_chain_is_the_plain_one(form, shape, keys, request):
    """Samples stop before the first step, after it, inside a step and at the end of the shorter last one."""
    request.getfixturevalue(form)
    process, x0 = chain(**keys), images(*shape)
    got = same(process, x0, [0.0, 0.09, 0.5, 1.0], skip=3)
    assert torch.equal(got[0], x0[0])
    assert not torch.equal(got[1], x0[1])


@runs_kernels
@pytest.mark.parametrize(
    ("shape", "t"),
    [((1, 3, 32, 32), 0.5), ((1, 3, 64, 64), 0.1), ((1, 4, 64, 64), 0.1), ((1, 1, 127, 130), 0.1)],
)
def test_up_to_fifty_steps_of_the_sizes_of_training(fused, shape, t):
    same(anisodiff.process("anisotropic-paper", shape[-1]), images(*shape), [t], skip=1)


@runs_kernels
@pytest.mark.parametrize("skip", [0, 1, 10**6])
def test_the_normals_are_those_of_the_keys(fused, skip):
    """Without a drift, a step of length 1 from zero is noise; the plain form rounds the angle, by up to 2π·2^-24."""
    process = chain(diffusivity=0.0, intensity=1.0, dt=1.0)
    x0 = torch.zeros(4, 3, 8, 9)
    got = process.draw(x0.to(DEVICE), 1.0, KeyedNoise(KEYS[:4].to(DEVICE), skip=skip)).cpu()
    plain, exact = (KeyedNoise(KEYS[:4], skip=skip).normal(like) for like in (x0, x0.double()))
    assert (got - plain).abs().max() < 3e-6
    assert (got - exact).square().mean() < (plain - exact).square().mean()


@runs_kernels
@pytest.mark.parametrize("noise_anisotropy", ["infinite", 0.2])
def test_training_pairs_of_the_fused_chain(fused, noise_anisotropy):
    """The last step is the plain form's: target and drift follow from the state it begins at."""
    process, x0 = chain(noise_anisotropy=noise_anisotropy), images(4, 3, 8, 8)
    t = process.snap_to_grid(torch.tensor([0.01, 0.12, 0.5, 1.0], dtype=torch.float64))
    one, other = KeyedNoise(KEYS[:4].to(DEVICE), skip=1), StepByStep(KEYS[:4], skip=1)
    got, want = process.training_pair(x0.to(DEVICE), t, one), process.training_pair(x0, t, other)
    assert one.drawn == other.drawn
    assert not torch.equal(got.state.cpu(), want.state)  # equal bits: a form compared with itself
    for name in ("state", "target", "drift"):
        a, b = getattr(got, name).cpu(), getattr(want, name)
        assert (a - b).abs().max() < 1e-5 * b.abs().max(), name


@runs_kernels
def test_what_a_sample_meets_is_its_own(fused):
    """Alone, or among samples that go farther."""
    process, x0 = chain(), images(3, 1, 6, 6)
    t = torch.tensor([0.3, 0.9, 0.05], dtype=torch.float64)
    together = process.draw(x0.to(DEVICE), t.to(DEVICE), KeyedNoise(KEYS[:3].to(DEVICE)))
    alone = process.draw(x0[:1].to(DEVICE), t[:1].to(DEVICE), KeyedNoise(KEYS[:1].to(DEVICE)))
    assert torch.equal(together[:1], alone)


def test_what_the_fused_chain_takes(monkeypatch):
    """No stencil of one's own, no noise but white keyed noise."""
    u, t = torch.zeros(2, 3, 8, 8), torch.ones(2, dtype=torch.float64)
    process, keyed = chain(), KeyedNoise(KEYS[:2])

    def integrate(process=process, stencil="paper", rng=keyed):
        return process.step.integrate(process.equation, stencil, u, t, 12, rng)

    assert integrate() is None  # a CPU
    monkeypatch.setattr(kernels, "usable", lambda *tensors: True)
    correlated = SPDE(
        equation=Equation(diffusivity=1.0, intensity=1.0, correlation_length=1.0), stencil="paper", step=TamedEuler()
    )
    assert integrate(process=correlated) is None
    assert integrate(stencil="another") is None
    for other in (None, torch.Generator(), ZeroNoise(KEYS[:2]), KeyedNoise(KEYS[:3])):
        assert integrate(rng=other) is None
    assert keyed.drawn == 0


@needs_cuda
def test_moments_at_the_end_are_those_of_the_plain_form():
    """256 runs from one image, each form with noise of its own: 3072 means and variances, in standard errors.

    5.5 is passed by chance once in 4000 runs (two tests, 3072 values, normal tails).
    """
    process = anisodiff.process("anisotropic-paper", 32)
    x0 = images(1, 3, 32, 32).cuda().expand(256, -1, -1, -1)
    keys = torch.arange(256, device="cuda")
    one, other = (process.draw(x0, process.T, noise).double() for noise in (KeyedNoise(keys), StepByStep(keys + 256)))
    means = (one.mean(0) - other.mean(0)) / ((one.var(0) + other.var(0)) / 256).sqrt()
    variances = (one.var(0) / other.var(0)).log() / (4 / 255) ** 0.5
    assert means.abs().max() < 5.5
    assert variances.abs().max() < 5.5
    assert variances.mean().abs() < 0.5


@needs_cuda
@pytest.mark.parametrize(("batch", "size"), [(512, 32), (256, 64), (16, 256)])
def test_all_multiprocessors_at_once(batch, size):
    """The same noise gives the states of the plain form after 200 steps, and the same bits again: no race."""
    process, x0 = anisodiff.process("anisotropic-paper", size), images(batch, 3, size, size).cuda()
    keys, t = torch.arange(batch, device="cuda"), torch.linspace(0, 2, batch, dtype=torch.float64, device="cuda")
    got = process.draw(x0, t, KeyedNoise(keys))
    assert torch.equal(got, process.draw(x0, t, KeyedNoise(keys)))
    want = process.draw(x0, t, StepByStep(keys))
    assert (got - want).abs().max() < 1e-5 * want.abs().max()


@starts_interpreter
def test_the_fused_chain_in_the_interpreter():
    run_interpreted(__file__, least=29)


@needs_compiler
@pytest.mark.parametrize(
    ("norm", "gamma", "stencil", "noisy", "additive"),
    [("image", 1.0, "paper", True, True), ("element", 1.5, "flux", True, False), ("rms", 1.0, "paper", False, True)],
)
def test_the_kernels_compile_for_a_gpu(norm, gamma, stencil, noisy, additive, tmp_path, monkeypatch):
    """The interpreter takes more than the compiler does; compiling for compute capability 9.0 needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    from anisodiff.integrators.kernels import chain, tiles

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {
        "CHANNELS": 3, "HEIGHT": 8, "WIDTH": 8, "SIZE": 192, "STENCIL": stencil, "SMOOTHS": True, "NOISY": noisy,
        "ADDITIVE": additive, "NORM": norm, "GAMMA": gamma, "BLOCK": 32, "PARTS": 3, "TILES": 6, "SHARES": 8,
        "keys": None, "slopes": None,
    }  # fmt: skip
    types = dict.fromkeys(("u", "scratch", "out", "drifts", "squares"), "*fp32")
    types |= dict.fromkeys(("until", "alpha1", "inv_lambda1", "alpha2", "inv_lambda2", "nodes"), "*fp64")
    types |= {"k": "i32", "first": "i32", "dt": "fp32"}
    types |= ({"keys": "*i64"} if noisy else {}) | ({} if additive else {"slopes": "*fp32"})
    for kernel in (chain._chain, tiles._drift, tiles._update):
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        known = {name: constants[name] for name, kind in signature.items() if kind == "constexpr"}
        source = triton.compiler.ASTSource(kernel, signature, known)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1, "maxnreg": 64})
        assert made.asm["cubin"]
