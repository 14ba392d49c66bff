"""The page of a comparison: tables, figures, protocols and caveats in one Markdown file, from the results alone."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anisodiff.experiments import plots
from anisodiff.experiments.edits import file_of
from anisodiff.experiments.results import (
    METRICS,
    OF_PIXELS,
    Number,
    Row,
    Summary,
    best,
    cell,
    of_pixels,
    over_images,
    read_rows,
    text,
)  # fmt: skip
from anisodiff.io.atomic import replacing, without_folders
from anisodiff.io.picture_files import legible
from anisodiff.io.records import write_json
from anisodiff.metrics.protocol import ENOUGH, Report, aligned

_MARKED = ("fid", *OF_PIXELS)
"""Positive, and lower is better: a difference in per cent means something."""


def write_page(out: Path, study: dict[str, Any], names: Sequence[str] | None = None) -> Summary:
    """Write results/page.md with its figures and page.json from the results so far."""
    rows = read_rows(out, study, names=names)
    results = out / "results"
    priors = list(dict.fromkeys(prior for row in rows for prior, _ in row.columns))
    panels = plots.panels_of(rows, priors)
    figures = plots.draw_all(panels, rows, priors, out)
    pixels, n = of_pixels(study), int(study["fixed"]["n"])
    leading = {name: name for name in OF_PIXELS} if pixels else {"fid": "FID"}
    table = _main_table(rows, priors, leading)
    few = [f"{n} samples: below {ENOUGH:,} {'the numbers are' if pixels else 'FID is'} biased and noisy."]
    few = (few if n < ENOUGH else []) + _latent_note(rows, study["runs"])
    parts = ["# Comparison", _opening(study, rows, leading), aligned(table, widest=60)]
    for prior in priors if not pixels else ():
        parts += [f"## All numbers, prior `{prior}`", _metrics_table(rows, prior)]
    if any(len({steps for _, steps in row.columns}) > 1 for row in rows):
        parts += [f"## {', '.join(leading.values())} over NFE", *_over_nfe(rows, priors, leading)]
    parts += _figure(figures, "nfe", "FID over NFE")
    if "training" in figures:
        parts += ["## FID over training time", _track_words(rows, study["fixed"]["n"]), _track_table(rows)]
        parts += _figure(figures, "training", "FID over training time and images seen")
    if tables := _over_images(rows, priors):
        parts += ["## FID over images seen", *tables, *_figure(figures, "images", "FID over images seen")]
    if "sheets" in figures:
        words = "One row per run; equal columns have equal seeds."
        parts += ["## Samples of the same seeds", words, *_figure(figures, "sheets", words)]
    if any(row.files("edit-") for row in rows):
        parts += ["## Strokes to images (SDEdit)", _edit_words(study), _edit_table(rows)]
    parts += _figure(figures, "edits", "Faithfulness against distance to photographs")
    parts += _figure(figures, "edit-sheets", "Edits of the same paintings")
    parts += ["## Protocol", _protocol(rows, study)]
    if notes := [*few, *_caveats(rows, priors, marked="≈" in "".join(parts))]:
        parts.insert(3, "\n".join(f"- {line}" for line in notes))
    path = results / "page.md"
    with replacing(path) as temporary:
        temporary.write_text(legible("\n\n".join(parts)) + "\n", encoding="utf-8")
    curves = [panel.as_dict() for shown in panels.values() for panel in shown]
    curves = [curve for curve in curves if curve["lines"]]
    write_json(results / "page.json", {"study": study, "rows": [_plain(row) for row in rows], "curves": curves})
    shown = [*few, *_caveats(rows, priors, marked="≈" in str(table))]
    wide = len(leading) + 2  # columns of a prior
    compared = [5 + wide * k + j for k in range(len(priors)) for j in range(len(leading))]
    narrow = [0, 1, 2, 3, *compared, *([3 + wide, 4 + wide] if priors else [])]
    return Summary(path=path, table=table, narrow=[[row[k] for k in narrow] for row in table], notes=shown)


def _plain(row: Row) -> dict[str, Any]:
    return {"name": row.name, "label": row.label, "seeds": list(row.seeds), "results": list(row.results)}


def _opening(study: dict[str, Any], rows: Sequence[Row], leading: Mapping[str, str]) -> str:
    fixed = study["fixed"]
    seeds = max(len(row.seeds) for row in rows)
    machines = {words for row in rows if (words := row.text("train", "device"))}
    device = f" on {', '.join(sorted(machines))}" if machines else ""
    trained = (
        "given checkpoints"
        if all(_given(row) for row in rows)
        else f"{fixed['budget']} of training each{device} (compilation and calibration not counted)"
    )
    return (
        f"{len(rows)} runs, {trained}, {fixed['n']} samples, {seeds} seed{'s' if seeds > 1 else ''} of "
        f"training. Lower is better for {', '.join(leading.values())}; the best is bold."
    )


def _latent_note(rows: Sequence[Row], runs: dict[str, Any]) -> list[str]:
    """A line where some runs are trained on latents and others on pixels."""
    latent = [row.label for row in rows if (runs[row.places[0].name].get("config") or {}).get("latent")]
    if len(latent) in (0, len(rows)):
        return []
    also = "encoding is not in their training time, and an edit's strength is one in latent space"
    return [f"Trained on latents: {', '.join(latent)}; decoded images are compared, {also}."]


def _given(row: Row) -> bool:
    return any((result.get("train") or {}).get("given") for result in row.results)


def _main_table(rows: Sequence[Row], priors: Sequence[str], leading: Mapping[str, str]) -> list[list[str]]:
    """``leading``: the metrics to compare, with their titles."""
    head = ["run", "images seen", "optimizer steps", "training, s", "training, ms/image"]
    for prior in priors:
        head += [*(f"{title}, {prior}" for title in leading.values()), "NFE", "sampling, ms/image"]
    table = [head]
    lowest = {(p, m): best([row.metric(row.main(p) or "", m) for row in rows]) for p in priors for m in leading}
    for row in rows:
        images, steps, seconds = (row.fact("train", key) for key in ("images", "steps", "seconds"))
        given = " (given)" if _given(row) else ""
        each = Number(mean=seconds.mean / images.mean) if images and images.mean and seconds else None
        line = [row.label, text(images, ",.0f") + (given if images else ""), text(steps, ",.0f")]
        line += [text(seconds, ".4g"), text(each, factor=1e3)]
        for prior in priors:
            column = row.main(prior) or ""
            for name in leading:
                line.append(cell(row.metric(column, name), lowest[prior, name]))
            line += [text(row.nfe(column), ".0f")]
            line += [text(row.fact(column, "sampling", "seconds_per_image"), factor=1e3)]
        table.append(line)
    return table


def _caveats(rows: Sequence[Row], priors: Sequence[str], *, marked: bool) -> list[str]:
    """Notes below the table; ``marked``: it has a ≈."""
    lines = []
    if marked and any(len(row.seeds) == 1 for row in rows):
        lines.append("≈: within 10% of the best with one seed: the difference is not significant.")
    if any(len(row.seeds) > 1 for row in rows):
        lines.append("±: half the range over seeds; ≈ also marks runs that overlap with the best within that.")
    given = [row.label for row in rows if _given(row)]
    if 0 < len(given) < len(rows):
        lines.append(f"Given checkpoints, trained with another budget: {', '.join(given)}.")
    timed = [row for row in rows if row.fact("train", "images") is not None and not _given(row)]
    if brief := [row.label for row in timed if row.fact("train", "seconds") is None]:
        lines.append(f"Training too short to measure its time: {', '.join(brief)}.")
    if other := list(dict.fromkeys(itertools.chain.from_iterable(map(_other_nfe, rows)))):
        lines.append(f"NFE that differ from --steps, as a step costs more than one: {', '.join(other)}.")
    for row in rows:
        if failed := row.text("train", "failed"):
            lines.append(f"{row.label}: training failed: {failed}")
        for prior, steps in row.columns:
            if failed := row.text(f"{prior}-{steps}", "failed"):
                lines.append(f"{row.label}, prior {prior}, NFE {steps}: failed: {failed}")
        for prior in priors:
            if note := row.text(row.main(prior) or "", "sampling", "note"):
                lines.append(f"{row.label}, prior {prior}: {note}")
    return lines


def _other_nfe(row: Row) -> Iterator[str]:
    """The NFE of a run that differ from those asked for; not of an adaptive sampler, whose limit these are."""
    for prior, steps in row.columns:
        spent, mean = (row.fact(f"{prior}-{steps}", "sampling", key) for key in ("nfe", "mean_nfe"))
        if spent is not None and mean is None and spent.mean != steps:
            yield f"{row.label} {spent} for {steps}"


def _grid(head: str, rows: Sequence[Row], columns: Sequence[tuple[str, list[Number | None], bool]]) -> str:
    """One row per run; columns of (title, numbers, whether the lowest is marked)."""
    lowest = [best(numbers) if marked else None for _, numbers, marked in columns]
    table = [[head, *(title for title, _, _ in columns)]]
    for k, row in enumerate(rows):
        table.append([row.label, *(cell(numbers[k], low) for (_, numbers, _), low in zip(columns, lowest))])
    return aligned(table, widest=60)


def _metrics_table(rows: Sequence[Row], prior: str) -> str:
    found = [(m, [row.metric(row.main(prior) or "", m) for row in rows], m in _MARKED) for m in METRICS]
    return _grid("run", rows, found)


def _over_nfe(rows: Sequence[Row], priors: Sequence[str], leading: Mapping[str, str]) -> list[str]:
    parts = []
    for prior, (metric, title) in itertools.product(priors, leading.items()):
        steps = sorted({count for row in rows for name, count in row.columns if name == prior})
        found = [(str(c), [row.metric(f"{prior}-{c}", metric) for row in rows], True) for c in steps]
        parts.append(_grid(f"{title}, prior {prior}, NFE", rows, found))
    return parts


def _over_images(rows: Sequence[Row], priors: Sequence[str]) -> list[str]:
    """One row per number of images, one column per training."""
    parts = []
    for prior in priors:
        if not (curves := over_images(rows, prior)):
            continue
        table = [[f"FID, prior {prior}, images seen", *curves]]
        for images in sorted({at for points in curves.values() for at in points}):
            found = [points.get(images) for points in curves.values()]
            table.append([f"{images:,}", *(cell(number, best(found)) for number in found)])
        parts.append(aligned(table, widest=60))
    return parts


def _track_words(rows: Sequence[Row], n: int) -> str:
    points = {
        row.label: [r for result in row.results for k, r in result.items() if k.startswith("track-")] for row in rows
    }
    counts = [point["samples"] for found in points.values() for point in found if "samples" in point]
    few = f"; {min(counts)} samples each" if counts else ""
    higher = ", so FID is higher than in the table" if counts and min(counts) < n else ""
    # not equal where a run has its own, or where a study has grown by an NFE
    made = {
        label: " and ".join(dict.fromkeys(point["column"].replace("-", ", ") for point in found if "column" in point))
        for label, found in points.items()
    }
    kinds = [words for words in dict.fromkeys(made.values()) if words]
    how = f"; {kinds[0]} NFE" if len(kinds) == 1 else ""
    if len(kinds) > 1:
        how = f". **Prior and NFE differ**: {'; '.join(f'{k}: {w}' for k, w in made.items() if w)}"
    return f"EMA weights during training{few}{higher}{how}."


def _track_table(rows: Sequence[Row]) -> str:
    """One column per evaluation: named by its images where all runs have as many, else by its number."""
    columns = []
    for file in sorted({name for row in rows for name in row.files("track-")}, key=lambda name: int(name[6:])):
        seen = {round(images.mean) for row in rows if (images := row.fact(file, "images")) is not None}
        equal = len(seen) == 1
        title = f"{seen.pop():,}{_steps(rows, file)}" if equal else file[6:]
        columns.append((title, [row.fact(file, "fid") for row in rows], equal))
    return _grid("images seen (optimizer steps), or number", rows, columns)


def _steps(rows: Sequence[Row], file: str) -> str:
    """(STEPS) of the optimizer, where they are known and all runs have as many."""
    found = {round(steps.mean) for row in rows if (steps := row.fact(file, "steps")) is not None}
    return f" ({found.pop():,})" if len(found) == 1 else ""


def _edit_words(study: dict[str, Any]) -> str:
    edit = study["fixed"].get("edit") or {}
    return (
        f"Photographs ({', '.join(edit.get('sources', []))}) painted in {edit.get('colors')} colors by k-means, "
        "then edited at equal strengths s = σ/(σ + σ_d): equal times would not be equally strong. FID and KID are "
        "to the photographs themselves."
    )


def _edit_table(rows: Sequence[Row]) -> str:
    strengths = sorted({float(name.removeprefix("edit-")) for row in rows for name in row.files("edit-")})
    table = [["run", "strength", "NFE", "RMSE to painting", "RMSE to photograph", "FID to photographs", "KID"]]
    for row in rows:
        for s in strengths:
            file = file_of(s)
            if failed := row.text(file, "failed"):
                table.append([row.label, f"{s:g}", "–", f"failed: {failed}", "–", "–", "–"])
                continue
            facts = [row.fact(file, key) for key in ("nfe", "rmse_painting", "rmse_photo", "fid", "kid")]
            table.append([row.label, f"{s:g}", *map(text, facts)])
    return aligned(table, widest=60)


def _figure(figures: dict[str, str], name: str, words: str) -> list[str]:
    return [f"![{words}]({figures[name]})"] if name in figures else []


def _protocol(rows: Sequence[Row], study: dict[str, Any]) -> str:
    """The command, the common protocol, then what each run has of its own."""
    own, shared, reports = [], dict[str, None](), []
    for row in rows:
        for seed, result in zip(row.seeds, row.results):
            for prior, steps in row.columns:
                held = result.get(f"{prior}-{steps}") or {}
                if held.get("report") is not None:
                    report = Report.of(held["report"])
                    reports.append(report)
                    samples, _, common = report.protocol.line().partition(" against ")
                    shared[f"- All against {common}"] = None
                    own.append(f"- {row.label}, training seed {seed}, {held['sampling']['sampler']}: {samples}")
    free = ("nfe", "prior")
    differ = {d for r in reports[1:] for d in reports[0].protocol.differences(r.protocol)}
    warnings = [f"- warning: protocols differ: {d}" for d in sorted(differ) if d.split(":")[0] not in free]
    command = [f"    {study['command']}"] if study.get("command") else []
    parts = (command, [*shared, *own, *warnings], _config_lines(study["runs"]))
    return "\n\n".join("\n".join(part) for part in parts if part)


def _config_lines(runs: dict[str, Any]) -> list[str]:
    """The common config, then what each run has of its own."""
    configs = {name: d["config"] for name, d in runs.items() if d.get("config") is not None}
    configs = {name: {key: value for key, value in c.items() if value != ""} for name, c in configs.items()}
    first: dict[str, Any] = next(iter(configs.values()), {})
    common = {key: value for key, value in first.items() if all(c.get(key) == value for c in configs.values())}

    def words(values: dict[str, Any]) -> str:
        return without_folders(", ".join(f"{key} = {value}" for key, value in values.items()))

    lines = [f"- training, all: {words(common)}"] if common else []
    for name, described in runs.items():
        config = configs.get(name)
        if config is None:
            lines.append(f"- {name}: checkpoint {described['checkpoint'][:12]}")
        elif different := {key: value for key, value in config.items() if key not in common}:
            lines.append(f"- {name}: {words(different)}")
    return lines
