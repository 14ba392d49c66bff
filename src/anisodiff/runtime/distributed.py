"""The processes of a run: one, or several started by `accelerate launch` or `torchrun`.

Rank r of W computes its share of every batch; gradients are averaged, so weights are equal everywhere. Only rank 0
writes. A single process needs no accelerate.
"""

import atexit
import gc
import os
import pickle
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

PATIENCE = timedelta(days=7)
"""How long the processes wait for rank 0 to choose."""
_NUMBERS = count()


class Distributed:
    """This process, of all processes of the run."""

    def __init__(self, device: torch.device) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank, self.device = 0, device
        self._accelerator: Any = None
        if self.world > 1:
            self._accelerator = _accelerator(device)
            self.rank = int(self._accelerator.process_index)
            self.device = torch.device(self._accelerator.device)

    @property
    def leads(self) -> bool:
        """Whether this process, rank 0, writes and prints."""
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network with its gradients averaged over all processes; its first weights are rank 0's."""
        if self._accelerator is None:
            return network
        wrapped: nn.Module = self._accelerator.prepare_model(network)
        return wrapped

    def shard(self, network: nn.Module) -> nn.Module:
        """The network, in place, with every weight cut along its first axis among the processes (FSDP2).

        Blocks of NCSN++ are gathered, used and released one by one. Any other network is gathered as a whole: it may
        share weights between its parts, or use a part outside of the part's own call.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        from anisodiff.networks.ncsnpp import NCSNpp

        mesh = init_device_mesh(self.device.type, (self.world,))
        lists = [one for one in network.modules() if isinstance(one, nn.ModuleList) and isinstance(network, NCSNpp)]
        for part in (part for one in lists for part in one):
            if type(part).forward is not nn.Module.forward:
                fully_shard(part, mesh=mesh)
        fully_shard(network, mesh=mesh)
        return network

    def part_of(self, whole: Tensor) -> Tensor:
        """This process's part of a tensor that is cut along its first axis; of a number the number."""
        if not whole.dim():
            return whole
        parts = whole.chunk(self.world)
        return parts[self.rank] if self.rank < len(parts) else whole[:0]

    def unsynced(self, network: nn.Module, wanted: bool) -> AbstractContextManager[Any]:
        """Where ``wanted``, backward passes that only add to this process's own gradients."""
        if wanted and isinstance(network, nn.parallel.DistributedDataParallel):
            return network.no_sync()
        return nullcontext()

    def equalize(self, tensors: Iterable[Tensor]) -> None:
        """Rank 0's values everywhere."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def largest(self, value: Tensor) -> Tensor:
        """Elementwise maximum over all processes, without waiting for the device."""
        if self.world > 1:
            dist.all_reduce(value, dist.ReduceOp.MAX)
        return value

    def total(self, value: Tensor) -> Tensor:
        """Elementwise sum over all processes."""
        if self.world > 1:
            dist.all_reduce(value)
        return value

    def gather(self, value: Any) -> list[Any]:
        """The values (any that can be pickled) of all processes, in the order of their ranks."""
        found = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(found, value)
        return found

    def agree(self, choose: Callable[[], Any]) -> Any:
        """The value that ``choose`` returns on rank 0. If it fails, the others raise a ValueError with its message.

        The others ask the store that the processes met at, not a collective, which would time out after ten minutes:
        rank 0 may take an hour to read all images.
        """
        if self.world == 1:
            return choose()
        store, key = dist.distributed_c10d._get_default_store(), f"anisodiff/{next(_NUMBERS)}"
        if self.leads:
            try:
                chosen = choose()
            except Exception as error:  # its text only: not every error can be pickled
                store.set(key, pickle.dumps((None, str(error) or type(error).__name__)).hex())
                raise
            store.set(key, pickle.dumps((chosen, None)).hex())
            return chosen
        store.wait([key], PATIENCE)
        chosen, failure = pickle.loads(bytes.fromhex(store.get(key).decode()))  # written by rank 0 of this very run
        if failure is not None:
            raise ValueError(f"rank 0: {failure}")
        return chosen


def _leave() -> None:
    if dist.is_initialized():
        gc.collect()  # a network that still held the group would keep gloo's threads alive, which then abort the exit
        dist.destroy_process_group()


def _accelerator(device: torch.device) -> Any:
    try:
        from accelerate import Accelerator
    except ImportError:
        raise ValueError("several processes need accelerate: pip install 'anisodiff[train]'") from None
    if not dist.is_initialized():
        atexit.register(_leave)  # not after a run: accelerate joins a group once per process
    # precision and compilation are handled by the trainer, for the network only
    return Accelerator(cpu=device.type == "cpu", mixed_precision="no")
