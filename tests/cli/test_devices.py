"""Which device a name means."""

import pytest
import torch

from anisodiff.runtime.devices import pick_device

CUDA = torch.cuda.is_available()


def test_the_cpu_and_a_device_itself():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device(torch.device("meta")) == torch.device("meta")
    assert pick_device("auto").type == ("cuda" if CUDA else "cpu")


@pytest.mark.parametrize("name", ["tpu", "cuda:", "cuda:-1", "cuda:one", "cuda:0 ", "CUDA", ""])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match="unknown device"):
        pick_device(name)


@pytest.mark.skipif(CUDA, reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_cuda_where_there_is_none(name):
    with pytest.raises(ValueError, match=rf"no CUDA device found \(requested '{name}'\); use 'cpu'"):
        pick_device(name)


@pytest.mark.skipif(CUDA or torch.backends.mps.is_available(), reason="there is a GPU")
def test_a_gpu_where_there_is_none():
    with pytest.raises(ValueError, match=r"no CUDA or MPS device found \(requested 'gpu'\); use 'cpu'"):
        pick_device("gpu")
    with pytest.raises(ValueError, match=r"no MPS device found \(requested 'mps'\); use 'cpu'"):
        pick_device("mps")


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_cuda_by_number():
    assert pick_device("gpu") == pick_device("cuda") == torch.device("cuda")
    last = torch.cuda.device_count() - 1
    assert pick_device(f"cuda:{last}") == torch.device("cuda", last)
    assert torch.cuda.current_device() == last
    with pytest.raises(ValueError, match=f"found only cuda:0 to cuda:{last} .*; use 'cuda:0'"):
        pick_device(f"cuda:{last + 1}")
