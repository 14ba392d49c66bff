"""The end of the page: how every number was made. What is equal is said once, what differs for each."""

from collections.abc import Sequence
from typing import Any

from anisodiff.experiments.measuring import read_report
from anisodiff.experiments.numbers import Row


def protocol(rows: Sequence[Row], study: dict[str, Any]) -> str:
    """The command, what all numbers share, then what each has of its own."""
    own, shared, reports = [], dict[str, None](), []
    for row in rows:
        for seed, result in zip(row.seeds, row.results):
            for prior, steps in row.columns:
                held = result.get(f"{prior}-{steps}") or {}
                if "report" in held:
                    report = read_report(held["report"])
                    reports.append(report)
                    samples, _, common = report.protocol.line().partition(" against ")
                    shared[f"- All against {common}"] = None
                    own.append(f"- {row.label}, seed of training {seed}, {held['sampling']['sampler']}: {samples}")
    free = ("nfe", "prior")
    differ = {d for r in reports[1:] for d in reports[0].protocol.differences(r.protocol)}
    warnings = [f"- warning: protocols differ: {d}" for d in sorted(differ) if d.split(":")[0] not in free]
    command = [f"    {study['command']}"] if study.get("command") else []
    parts = (command, [*shared, *own, *warnings], _config_lines(study["contenders"]))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _config_lines(contenders: dict[str, Any]) -> list[str]:
    """What all configs share, then what each has of its own."""
    configs = {name: d["config"] for name, d in contenders.items() if "config" in d}
    first: dict[str, Any] = next(iter(configs.values()), {})
    common = {key: value for key, value in first.items() if all(c.get(key) == value for c in configs.values())}

    def words(values: dict[str, Any]) -> str:
        return ", ".join(f"{key} = {value}" for key, value in values.items())

    lines = [f"- training, all: {words(common)}"] if common else []
    for name, described in contenders.items():
        config = configs.get(name)
        if config is None:
            lines.append(f"- {name}: checkpoint {described['checkpoint'][:12]}")
        elif different := {key: value for key, value in config.items() if key not in common}:
            lines.append(f"- {name}: {words(different)}")
    return lines
