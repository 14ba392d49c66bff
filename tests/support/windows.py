"""Windows as far as Linux can play it: for a program that imports this before anisodiff.

- modules and names of os and signal that only POSIX has are missing, for what is imported from here on;
- a folder cannot be opened, a file that is open or mapped cannot be renamed, replaced or removed, nor a folder around
  it, and nothing is renamed onto what exists;
- text read or written in the platform's own encoding is an error.

Libraries are imported first: on Linux they may use what Linux has.
"""

import importlib
import os
import pathlib
import shutil
import signal
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch", "torch.distributed", "torch.optim", "torch.utils.checkpoint", "numpy", "scipy.linalg", "PIL.Image",
    "PIL.ImageFile", "PIL.PngImagePlugin", "matplotlib.pyplot", "matplotlib.figure",
    "matplotlib.backends.backend_agg", "safetensors.torch", "yaml", "typer", "typer.testing", "rich.console",
    "rich.progress", "rich.table", "filelock", "zipfile", "tarfile", "tempfile", "secrets", "subprocess",
    "multiprocessing", "concurrent.futures", "urllib.request",
)  # fmt: skip
MODULES = (
    "fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "crypt", "readline",
    "curses",
)  # fmt: skip
OS = (
    "fork", "forkpty", "sync", "fdatasync", "getuid", "geteuid", "getgid", "getpgid", "getpgrp", "setsid",
    "killpg", "sched_getaffinity", "sched_setaffinity", "nice", "mkfifo", "mknod", "statvfs", "uname",
    "sysconf", "fchmod", "chown", "lchown", "set_blocking", "get_blocking", "pread", "pwrite",
    "posix_fallocate", "posix_fadvise", "sendfile", "wait", "waitid", "register_at_fork", "getloadavg",
    "ctermid", "openpty", "O_NONBLOCK", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "O_SYNC", "O_DSYNC",
    "O_DIRECT", "memfd_create", "copy_file_range", "getxattr", "setxattr", "chroot",
)  # fmt: skip
SIGNALS = (
    "SIGKILL", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGCONT",
    "alarm", "setitimer", "pause", "pthread_sigmask", "pthread_kill", "sigwait", "siginterrupt",
)  # fmt: skip


class Without(types.ModuleType):
    """A module without some names, and with others of its own."""

    def __init__(self, module: types.ModuleType, missing: tuple[str, ...], **own: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update({"_module": module, "_missing": missing, **own})

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)


def in_use(path: str | Path) -> str | None:
    """A file at or below ``path`` that this process has open or mapped."""
    place = os.path.realpath(path)
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    opened = [os.readlink(link) for link in links if os.path.lexists(link)]
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    mapped = [line.split(maxsplit=5)[-1].rstrip() for line in maps]
    return next((name for name in (*opened, *mapped) if name == place or name.startswith(place + os.sep)), None)


def _checked(function: Callable[..., Any], *, onto: bool) -> Callable[..., Any]:
    """``function``(path) or (path, target); ``onto``: whether a target that exists is replaced."""

    def call(path: Any, *rest: Any, **named: Any) -> Any:
        for place in (path, *(p for p in rest[:1] if isinstance(p, str | os.PathLike))):
            if (name := in_use(place)) and not str(name).endswith(".lock"):
                raise PermissionError(13, "The process cannot access the file because it is being used", name)
        if not onto and rest and os.path.lexists(rest[0]):
            raise FileExistsError(17, "Cannot create a file when that file already exists", str(rest[0]))
        return function(path, *rest, **named)

    return call


def _open(path: Any, *rest: Any, **named: Any) -> int:
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, *rest, **named)


def simulate() -> None:
    """From here on."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    checked = {name: _checked(getattr(os, name), onto=name != "rename") for name in ("rename", "replace", "remove")}
    pathlib.Path.rename = _checked(pathlib.Path.rename, onto=False)  # type: ignore[method-assign]
    pathlib.Path.replace = _checked(pathlib.Path.replace, onto=True)  # type: ignore[method-assign]
    pathlib.Path.unlink = _checked(pathlib.Path.unlink, onto=True)  # type: ignore[method-assign]
    shutil.rmtree = _checked(shutil.rmtree, onto=True)  # type: ignore[assignment]
    sys.modules["os"] = Without(os, OS, open=_open, **checked)
    sys.modules["signal"] = Without(signal, SIGNALS)
    warnings.filterwarnings("error", category=EncodingWarning, module="anisodiff")
