"""The log of a run: one JSON object a line in log.jsonl, and TensorBoard where it is installed."""

import json
import math
from pathlib import Path
from typing import Any

from anisodiff.io.atomic import replacing


def _plain(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_plain(v) for v in value] if isinstance(value, list) else value


def read_log(run: str | Path) -> list[dict[str, Any]]:
    """All whole lines of a run's log; a line cut off by a kill is left out."""
    path = Path(run) / "log.jsonl"
    records = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


class Log:
    """Appends records; a run that is continued at ``step`` forgets what it had logged beyond it."""

    def __init__(self, run: Path, step: int, *, tensorboard: bool) -> None:
        self._path = run / "log.jsonl"
        kept = [record for record in read_log(run) if record["step"] <= step]
        with replacing(self._path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        self._board: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                return
            self._board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, record: dict[str, Any]) -> None:
        """One line; a disk that is full loses the line, not the run."""
        record = {name: _plain(value) for name, value in record.items()}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            if self._board is not None:
                self._draw(record)
        except OSError:
            return

    def _draw(self, record: dict[str, Any]) -> None:
        step = record["step"]
        for name in ("loss", "grad_norm", "lr", "images_per_second", "skipped"):
            if record.get(name) is not None:
                self._board.add_scalar(name, record[name], step)
        for number, value in enumerate(record.get("loss_by_level") or []):
            if value is not None:
                self._board.add_scalar(f"loss_by_level/{number}", value, step)

    def close(self) -> None:
        """Flush."""
        if self._board is not None:
            self._board.close()
