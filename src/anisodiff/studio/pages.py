"""Pages of results as data: the blocks of a Markdown file, its figures, and the curves beside it.

A page is known by its place below a folder that the server was started with. Its figures are those that it names
itself: a request can name nothing else.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from anisodiff.io import schema
from anisodiff.io.archives import read_regular
from anisodiff.io.records import read_json

LARGEST_PAGE, LARGEST_FIGURE = 4 << 20, 16 << 20
FIGURE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}
_LINE = schema.fields(name=schema.text, points=schema.rows(schema.rows(schema.number, 2)))
_CURVES = schema.fields(
    curves=schema.optional(
        schema.rows(schema.fields(title=schema.text, x=schema.text, y=schema.text, lines=schema.rows(_LINE)))
    )
)
_IMAGE = re.compile(r"^!\[([^\]]*)\]\(([^)\s]+)\)\s*$")
_ITEM = re.compile(r"^(\s*)(?:[-*]|\d+\.)\s+(.*)$")
Block = dict[str, Any]


def pages_below(root: Path) -> dict[str, Path]:
    """Place → file of all Markdown pages, the overview first."""
    if not root.is_dir():
        return {}
    found = sorted(path for path in root.rglob("*.md") if path.is_file())
    found.sort(key=lambda path: (path != root / "README.md", len(path.relative_to(root).parts), str(path)))
    return {path.relative_to(root).as_posix(): path for path in found}


def title_of(path: Path) -> str:
    """The first heading of a page; for pages of one name, with their folders."""
    blocks = (block for block in blocks_of(path) if block["kind"] == "heading")
    return str(next(blocks, {"text": path.stem})["text"])


def blocks_of(path: Path) -> Iterator[Block]:
    """Headings, paragraphs, lists, code, tables and figures of a page, in order."""
    lines = read_regular(path, LARGEST_PAGE).decode("utf-8", "replace").splitlines()
    at = 0
    while at < len(lines):
        block, at = _block(lines, at)
        if block is not None:
            yield block


def _block(lines: Sequence[str], at: int) -> tuple[Block | None, int]:
    line = lines[at]
    if not line.strip():
        return None, at + 1
    if line.startswith("```"):
        end = next((k for k in range(at + 1, len(lines)) if lines[k].startswith("```")), len(lines))
        return {"kind": "code", "text": "\n".join(lines[at + 1 : end])}, end + 1
    if line.startswith("    "):
        end = _run(lines, at, lambda text: text.startswith("    ") or not text.strip())
        return {"kind": "code", "text": "\n".join(text[4:] for text in lines[at:end]).rstrip()}, end
    if heading := re.match(r"^(#{1,6})\s+(.*)$", line):
        return {"kind": "heading", "level": len(heading.group(1)), "text": heading.group(2)}, at + 1
    if image := _IMAGE.match(line):
        return {"kind": "figure", "words": image.group(1), "source": image.group(2)}, at + 1
    if line.startswith("|"):
        end = _run(lines, at, lambda text: text.startswith("|"))
        return _table(lines[at:end]), end
    if _ITEM.match(line):
        return _list(lines, at)
    end = _run(lines, at, lambda text: bool(text.strip()) and not text.startswith(("|", "#", "```", "![")))
    return {"kind": "paragraph", "text": " ".join(text.strip() for text in lines[at:end])}, end


def _run(lines: Sequence[str], at: int, more: Any) -> int:
    end = at + 1
    while end < len(lines) and more(lines[end]):
        end += 1
    return end


def _table(lines: Sequence[str]) -> Block:
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    body = [row for row in rows[1:] if not all(re.fullmatch(r":?-+:?", cell) for cell in row)]
    return {"kind": "table", "head": rows[0], "rows": body}


def _list(lines: Sequence[str], at: int) -> tuple[Block, int]:
    items: list[str] = []
    while at < len(lines) and lines[at].strip():
        found = _ITEM.match(lines[at])
        if found:
            items.append(found.group(2))
        elif items and lines[at].startswith(" "):
            items[-1] += f" {lines[at].strip()}"
        else:
            break
        at += 1
    return {"kind": "list", "items": items}, at


def figure_of(root: Path, page: Path, source: str) -> tuple[bytes, str]:
    """A figure that the page names, and its type."""
    named = {block["source"] for block in blocks_of(page) if block["kind"] == "figure"}
    path = (page.parent / source).resolve()
    kind = FIGURE_TYPES.get(path.suffix.lower())
    if source not in named or kind is None or not path.is_relative_to(root.resolve()):
        raise ValueError("the page has no such figure")
    return read_regular(path, LARGEST_FIGURE), kind


def curves_of(path: Path) -> list[dict[str, Any]]:
    """The curves of the JSON beside a page; none where there are none."""
    numbers = path.with_suffix(".json")
    if not numbers.is_file():
        return []
    held = read_json(numbers)
    try:
        return schema.require(_CURVES, held, numbers).get("curves") or []
    except ValueError:
        return []
