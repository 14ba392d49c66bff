"""Work in a process of its own, which may be killed."""

import os
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> int:
    """Run in a forked process; returns what waitpid says: 0 only if the work ended well."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]
