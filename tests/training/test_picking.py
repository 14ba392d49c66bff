"""What is picked for one's own images: by their number and size, and by the device."""

import pytest

from anisodiff.data.guessing import choose_size
from anisodiff.networks import NCSNppConfig
from anisodiff.registry import DEFAULT_PROCESS, PRESETS, PROCESSES
from anisodiff.training.model import Plan
from anisodiff.training.picking import Machine, for_images

CPU, MPS = Machine(kind="cpu"), Machine(kind="mps")
H200, LAPTOP = Machine(kind="cuda", memory=150e9, bf16=True), Machine(kind="cuda", memory=8e9, bf16=True)


@pytest.mark.parametrize("size", [(16, 16), (24, 24), (64, 48), (256, 256), (33, 33), (24, 256)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("machine", [CPU, MPS, H200, LAPTOP])
def test_any_images_on_any_device(size, channels, machine):
    config, words = for_images(1000, channels, size, machine)
    plan = Plan.of(config)
    assert all(side % NCSNppConfig(**plan.network.arguments).factor == 0 for side in size)
    assert f"{size[0]}×{size[1]}" in words
    assert config.network["name"] in words
    assert "\n" not in words
    assert config.images % config.batch == 0
    assert 0 < config.log_every <= config.checkpoint_every <= config.sample_every <= config.images
    assert config.warm_up <= config.images // 20


@pytest.mark.parametrize("name", [*PRESETS, *PROCESSES])
def test_every_process_can_be_trained_on_them(name):
    config, _ = for_images(1000, 3, (32, 32), CPU, name)
    assert config.process["preset"] == name
    assert config.channel_pca == (name in PRESETS)
    Plan.of(config)


def test_the_default_is_the_best_known():
    config, words = for_images(4000, 3, (64, 64), H200)
    assert config.process == {"preset": DEFAULT_PROCESS}
    assert DEFAULT_PROCESS in words
    assert config.channel_pca
    assert config.learns == "score_and_drift"  # every sampler can be used
    assert "on cuda" in words
    assert "--set size=…, --set network.name=…, --set batch=…, --images N" in words


def test_more_images_get_more_network_and_a_longer_run():
    few, many, most = (for_images(count, 3, (32, 32), H200)[0] for count in (500, 50_000, 1_000_000))
    assert [c.network["name"] for c in (few, many, most)] == ["small", "base", "base"]
    assert 999_000 < few.images <= 1_000_000 < many.images < most.images <= 50_000_000
    assert abs(many.images - 400 * 50_000) < many.batch


def test_the_device_sets_network_batch_and_arithmetic():
    on_cpu, on_gpu = (for_images(50_000, 3, (32, 32), machine)[0] for machine in (CPU, H200))
    assert (on_cpu.network["name"], on_cpu.precision, on_cpu.compile) == ("tiny", "fp32", False)
    assert (on_gpu.network["name"], on_gpu.precision, on_gpu.compile) == ("base", "bf16", False)
    assert (on_cpu.network["nf"], "nf" in on_gpu.network) == (32, False)
    assert "nf" not in for_images(50_000, 3, (32, 32), CPU, changes={"network.name": "base"})[0].network
    assert on_cpu.batch < on_gpu.batch
    assert on_cpu.images < on_gpu.images
    old = Machine(kind="cuda", memory=16e9, bf16=False)
    assert for_images(1000, 3, (32, 32), old)[0].precision == "fp32"


def test_a_small_gpu_cuts_the_batch_and_keeps_the_result():
    large, small = (for_images(9000, 3, (64, 64), machine)[0] for machine in (H200, LAPTOP))
    assert (large.accumulation, large.batch) == (1, small.batch)
    assert small.accumulation > 1
    assert small.batch % small.accumulation == 0


@pytest.mark.parametrize(
    ("changes", "size", "memory"),
    [({"network.name": "base"}, (64, 64), 24e9), ({}, (256, 256), 8e9), ({"batch": 90}, (64, 64), 4e9),
     ({"network.name": "cifar10"}, (32, 32), 8e9)],
)  # fmt: skip
def test_the_batch_is_cut_for_what_was_asked(changes, size, memory):
    """By the network, batch and size of the final config; always into equal parts."""
    machine = Machine(kind="cuda", memory=memory, bf16=True)
    config, _ = for_images(9000, 3, size, machine, changes=changes)
    assert config.accumulation > 1
    assert config.batch % config.accumulation == 0
    assert for_images(9000, 3, size, H200, changes=changes)[0].accumulation == 1
    given = {**changes, "accumulation": 2}
    assert for_images(9000, 3, size, machine, changes=given)[0].accumulation == 2


def test_what_is_given_is_kept():
    config, words = for_images(1000, 3, (32, 32), H200, "ve", {"batch": 96, "network.name": "tiny", "images": 9600})
    assert (config.batch, config.network["name"], config.images) == (96, "tiny", 9600)
    assert "batch 96" in words
    assert "process ve" in words


@pytest.mark.parametrize(
    ("machine", "count", "side"),
    [(H200, 641, 64), (H200, 5511, 64), (H200, 13_000, 128), (H200, 200_000, 256), (CPU, 200_000, 32), (MPS, 9, 64)],
)
def test_few_images_are_not_made_large(machine, count, side):
    assert machine.largest_side(count) == side


@pytest.mark.parametrize("count", [3, 10, 19, 20, 200])
def test_one_odd_picture_does_not_set_the_size(count):
    assert choose_size([(1, 1)] + [(300, 400 + k) for k in range(count - 1)])[0] == (256, 256)
    assert choose_size([(1, 1)] + [(64, 48)] * (count - 1))[0] == (64, 48)
    assert choose_size([(1, 1)] + [(300, 400 + k) for k in range(count - 1)], 64)[0] == (64, 64)


def test_a_limit_is_kept_and_named():
    size, why = choose_size([(200 + k, 300) for k in range(40)], 64)
    assert size == (64, 64)
    assert "64 is the limit for this number of images" in why
    assert choose_size([(128, 128)] * 5, 32)[0] == (32, 32)
    assert choose_size([(32, 24)] * 5, 32)[0] == (32, 24)
    assert choose_size([(24, 24)], 64)[0] == (24, 24)
