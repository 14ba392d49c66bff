"""Draw which packages of anisodiff import which, and count modules, imports and cycles.

    python docs/import_graph.py                                         # this tree
    python docs/import_graph.py --source OLD/src --output OLD.png       # another one, e.g. from `git archive`

Imports inside functions and under TYPE_CHECKING count. A node is a package, or a module at the top level. The bands
are the rings that import-linter holds (pyproject.toml); a tree with other packages has none. Arrows against
that order, or of a cycle, are red.
"""

import argparse
import io
import re
import sys
import tomllib
from pathlib import Path

import grimp
import matplotlib.pyplot as plt
import networkx
from matplotlib.patches import FancyArrowPatch
from PIL import Image

ROOT = Path(__file__).parents[1]
RINGS = {
    "command line": ("__main__", "cli"),
    "ring 3: experiments and the studio": ("studio", "experiments"),
    "ring 2: the tool": ("pipelines", "runtime"),
    "ring 1: the mathematics": ("registry", "extras"),
}
"""A ring → its first and last package in the linter's order."""
COLORS = ("#f4f4f4", "#e3f2e1", "#fdebd0", "#dcebf7")
INK, WRONG = "#33475b", "#d62728"


def read(source: Path) -> networkx.DiGraph:
    """The imports between modules, each with its full name."""
    sys.path.insert(0, str(source))
    graph = grimp.build_graph("anisodiff", exclude_type_checking_imports=False, cache_dir=None)
    found = networkx.DiGraph()
    found.add_nodes_from(graph.modules)
    for module in graph.modules:
        found.add_edges_from((module, other) for other in graph.find_modules_directly_imported_by(module))
    return found


def packages(modules: networkx.DiGraph) -> networkx.DiGraph:
    """The same between packages; the root, which only names the public API, is left out."""
    found = networkx.DiGraph()
    name = {module: module.split(".")[1] for module in modules if "." in module}
    found.add_nodes_from(name.values())
    for importer, imported in modules.edges:
        if importer in name and imported in name and name[importer] != name[imported]:
            found.add_edge(name[importer], name[imported])
    return found


def cycles(graph: networkx.DiGraph) -> list[list[str]]:
    """Groups of nodes that import each other in a circle."""
    return [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def order() -> list[str]:
    """The packages as import-linter orders them, outermost first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    return re.findall(r"\w+", " ".join(contracts[0]["layers"]))


def bands(graph: networkx.DiGraph) -> list[tuple[str, list[list[str]]]]:
    """(a ring, its rows), outermost first: a package stands below all of its ring that import it."""
    known = order()
    if not set(graph) <= set(known):  # another tree: no rings
        whole = networkx.condensation(graph)
        rows = networkx.topological_generations(whole)
        return [("", [sorted(name for node in row for name in whole.nodes[node]["members"]) for row in rows])]
    found = []
    for ring, (first, last) in RINGS.items():
        names = [name for name in known[known.index(first) : known.index(last) + 1] if name in graph]
        row: dict[str, int] = {}
        for name in names:
            row[name] = max((row[above] + 1 for above in graph.predecessors(name) if above in row), default=0)
        found.append((ring, [[name for name in names if row[name] == k] for k in range(max(row.values()) + 1)]))
    return found


def places(graph: networkx.DiGraph, rows: list[list[str]]) -> dict[str, tuple[float, float]]:
    """Where each package stands: in its row, near its neighbors."""
    x = {name: k - (len(row) - 1) / 2 for row in rows for k, name in enumerate(row)}
    around = graph.to_undirected()
    for _ in range(20):
        for row in rows:
            mean = {name: sum(x[other] for other in around[name]) / max(len(around[name]), 1) for name in row}
            shift = 0.5 * (rows.index(row) % 2) * (len(row) % 2)  # not all in one column
            for k, name in enumerate(sorted(row, key=mean.__getitem__)):
                x[name] = k - (len(row) - 1) / 2 + shift
    return {name: (2.1 * x[name], -float(number)) for number, row in enumerate(rows) for name in row}


def draw(graph: networkx.DiGraph, title: str, path: Path) -> None:
    """Rows from the outermost to the innermost, arrows from the importer to what it imports."""
    found = bands(graph)
    rows = [row for _, band in found for row in band]
    place = places(graph, rows)
    width = max(abs(x) for x, _ in place.values()) + 1.4
    figure, axes = plt.subplots(figsize=(8, 0.6 * len(rows) + 0.5), layout="constrained")
    top = 0.5
    for number, (ring, band) in enumerate(found):
        axes.axhspan(top - len(band), top, color=COLORS[number], zorder=0)
        axes.text(-width + 0.1, top - 0.12, ring, ha="left", va="top", fontsize=8, color=INK)
        top -= len(band)
    circle = {name: number for number, group in enumerate(cycles(graph)) for name in group}
    rank = {name: number for number, name in enumerate(order())} if len(found) > 1 else {}
    for importer, imported in graph.edges:
        (x0, y0), (x1, y1) = place[importer], place[imported]
        wrong = (
            rank[importer] > rank[imported]
            if rank
            else importer in circle and circle.get(imported) == circle[importer]
        )
        bend = 0.3 if y0 == y1 else 0.1 * (1 if x0 + x1 >= 0 else -1) * min(abs(y0 - y1) / 3, 2)
        axes.add_patch(
            FancyArrowPatch(
                (x0, y0), (x1, y1), connectionstyle=f"arc3,rad={bend}", arrowstyle="-|>", mutation_scale=6,
                shrinkA=10, shrinkB=10, linewidth=1.6 if wrong else 0.4, color=WRONG if wrong else INK,
                alpha=1.0 if wrong else 0.45, zorder=2 if wrong else 1,
            )
        )  # fmt: skip
    for name, (x, y) in place.items():
        box = {"boxstyle": "round,pad=0.32", "facecolor": "white", "edgecolor": INK, "linewidth": 0.7}
        axes.text(x, y, name.strip("_"), ha="center", va="center", fontsize=8, color="black", bbox=box, zorder=3)
    axes.set_xlim(-width, width)
    axes.set_ylim(top, 0.5)
    axes.set_axis_off()
    axes.set_title(title, fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Read the command line, draw and print."""
    parser = argparse.ArgumentParser(description="Draw the import graph of the package.")
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="the folder that holds anisodiff/")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "figures" / "import-graph.png")
    given = parser.parse_args()
    modules = read(given.source.resolve())
    graph = packages(modules)
    tangled = cycles(modules)
    numbers = (
        f"{len(modules)} modules, {modules.number_of_edges()} imports, {sum(map(len, tangled))} modules in cycles; "
        f"{len(graph)} packages, {graph.number_of_edges()} imports, {sum(map(len, cycles(graph)))} packages in cycles"
    )
    draw(graph, numbers, given.output)
    print(numbers)
    for group in cycles(graph):
        print("packages in a cycle:", ", ".join(group))
    for group in tangled:
        print("modules in a cycle:", ", ".join(group))
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
