"""Several processes: what rank 0 chooses, and how its errors reach the others."""

import pytest
import torch

from anisodiff.runtime.distributed import Distributed
from tests.support.children import together


class TwoArguments(Exception):
    """Pickled, it cannot be read back."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_an_error_of_rank_0_is_an_error_of_all() -> None:
    errors = [OSError(28, "No space left"), ValueError("No space left"), TwoArguments("No space", "left")]

    def fail(error: Exception) -> None:
        raise error

    def work(rank: int) -> None:
        distributed = Distributed(torch.device("cpu"))
        for error in errors:
            with pytest.raises(ValueError if rank else type(error), match="No space left"):
                distributed.agree(lambda error=error: fail(error))
        assert distributed.agree(lambda: rank) == 0
        distributed.gather(None)  # rank 0 holds the store that the others read

    together(work)
