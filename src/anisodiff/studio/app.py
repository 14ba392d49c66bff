"""The application: which address answers what. Work on torch goes through the queues and streams its events."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from anisodiff.processes.config import KEYS
from anisodiff.studio import design, generate, pages, requests, strokes
from anisodiff.studio.guard import Access, Guard, TooLarge
from anisodiff.studio.models import Models
from anisodiff.studio.pictures import BUNDLED, Pictures
from anisodiff.studio.queue import Busy, Event, FairQueue, Job
from anisodiff.studio.runs import Runs
from anisodiff.version import __version__

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
EXPORTS = {"png": "image/png", "gif": "image/gif"}
UPLOADS, PATIENCE = 8, 30.0
"""Pictures that arrive at a time, and seconds that one may take."""
TOGETHER = 8
"""Long jobs that share the time."""
EVERY = 1.0
"""Seconds between two looks at a run that is watched."""


@dataclass(frozen=True, kw_only=True)
class StudioConfig:
    """Where the studio looks for things, and who may ask."""

    runs: Path
    results: Path | None = None
    device: str = "auto"
    access: Access = Access()


class Studio:
    """What all requests share."""

    def __init__(self, config: StudioConfig) -> None:
        self.config = config
        self.pictures, self.runs = Pictures(), Runs(config.runs)
        self.models = Models(self.runs.runs, config.device)
        self.long = FairQueue("long", together=TOGETHER)
        # thousands of small operations, which are slower on several cores: 436 ms instead of 96, `anisotropic`
        self.quick = FairQueue("quick", cores=1)
        self.arriving, self.decoding = asyncio.Semaphore(UPLOADS), asyncio.Semaphore(1)

    def close(self) -> None:
        """End all work and all trainings."""
        self.quick.close()
        self.long.close()
        self.runs.close()

    async def stream(self, request: Request, queue: FairQueue, work: Callable[[Job], None]) -> Response:
        """The events of a job, one JSON object a line."""
        try:
            job = queue.submit(request.headers["x-client"], work)
        except Busy as error:
            return _refused(str(error), 503)
        return StreamingResponse(_lines(job.events(request.is_disconnected)), media_type="application/x-ndjson")

    async def receive(self, request: Request) -> tuple[str, str]:
        """A picture that a page sends."""
        async with self.arriving:
            try:
                data = await asyncio.wait_for(request.body(), PATIENCE)
            except TimeoutError:
                raise ValueError("the picture did not arrive in time; drop it again") from None
            async with self.decoding:
                return await asyncio.to_thread(self.pictures.add, data)

    async def watch(self, name: str, gone: Callable[[], Awaitable[bool]]) -> AsyncIterator[Event]:
        """The facts of a run, again whenever there is something new."""
        seen: Any = None
        while not await gone():
            try:
                stamp = await asyncio.to_thread(self.runs.stamp, name)
                if stamp != seen:
                    seen = stamp
                    yield {"kind": "run", **await asyncio.to_thread(self.runs.facts, name)}
            except (ValueError, OSError) as error:
                yield {"kind": "error", "message": " ".join(str(error).split())}
                return
            await asyncio.sleep(EVERY)


Work = Callable[[Studio, Job, Any], None]


async def _lines(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield json.dumps(event, allow_nan=False).encode() + b"\n"
    finally:
        await events.aclose()  # type: ignore[attr-defined]


def _refused(words: str, status: int = 400) -> JSONResponse:
    return JSONResponse({"message": " ".join(words.split())}, status_code=status)


def _files() -> dict[str, tuple[bytes, str]]:
    """The page, its style and its scripts: all there is to be served."""
    folder = resources.files("anisodiff.studio") / "static"
    found = {item.name: item.read_bytes() for item in folder.iterdir() if Path(item.name).suffix in TYPES}
    return {name: (data, TYPES[Path(name).suffix]) for name, data in found.items()}


def create_app(config: StudioConfig) -> Guard:
    """The application, guarded."""
    held: list[Studio] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        held.append(Studio(config))
        try:
            yield
        finally:
            await asyncio.to_thread(held.pop().close)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query"))
        return _refused(f"{place or 'the request'}: {first['msg']}", 422)

    @app.exception_handler(ValueError)
    async def mistaken(request: Request, error: ValueError) -> JSONResponse:
        return _refused(str(error))

    @app.exception_handler(TooLarge)
    async def too_large(request: Request, error: TooLarge) -> JSONResponse:
        return _refused(str(error), 413)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return _refused(error.detail, error.status_code)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> JSONResponse:
        return _refused("the page was closed")

    @app.exception_handler(OSError)
    async def unreadable(request: Request, error: OSError) -> JSONResponse:
        return _refused(error.strerror or "a file cannot be read")

    _add_pages(app)
    _add_work(app, held)
    _add_runs(app, held)
    _add_results(app, held)
    return Guard(app, config.access)


def _add_pages(app: FastAPI) -> None:
    files = _files()

    @app.get("/")
    async def index() -> Response:
        return Response(files["index.html"][0], media_type=TYPES[".html"])

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in files:
            return _refused("there is no such file", 404)
        data, kind = files[name]
        return Response(data, media_type=kind)


def _add_work(app: FastAPI, held: list[Studio]) -> None:
    @app.get("/api/about")
    def about(size: int = 64) -> dict[str, Any]:
        studio = held[0]
        if size not in design.SIZES:
            raise ValueError(f"size: got {size}, expected one of {', '.join(map(str, design.SIZES))}")
        return {
            "version": __version__, "pictures": {name: words for name, (words, _) in BUNDLED.items()},
            "models": studio.models.names(), **design.catalog(size),
        }  # fmt: skip

    @app.get("/api/model")
    def model(name: str) -> dict[str, Any]:
        return held[0].models.facts(name)

    @app.post("/api/pictures")
    async def pictures(request: Request) -> dict[str, Any]:
        code, words = await held[0].receive(request)
        return {"picture": code, "words": words}

    @app.get("/api/picture")
    def picture(name: str) -> Response:
        return Response(held[0].pictures.file(name), media_type="image/png")

    for name, (lane, body, work) in JOBS.items():
        _add_job(app, held, f"/api/{name}", lane, body, work)


def _add_job(app: FastAPI, held: list[Studio], address: str, lane: str, body: Any, work: Work) -> None:
    @app.post(address)
    async def answer(asked: body, request: Request) -> Response:
        studio = held[0]
        return await studio.stream(request, getattr(studio, lane), lambda job: work(studio, job, asked))


def _show(studio: Studio, job: Job, asked: requests.Shown) -> None:
    image = studio.pictures.get(asked.picture, (asked.size, asked.size))
    photo = None if asked.picture == "photograph" else "picture.png"
    design.show(job, *_settings(asked), image, asked.seed, photo)


def _diagnose(studio: Studio, job: Job, asked: requests.Shown) -> None:
    image = studio.pictures.get(asked.picture, (2 * asked.size, 2 * asked.size))
    design.verdict(job, _settings(asked)[0], image, asked.seed)


def _export(kind: str, studio: Studio, job: Job, asked: requests.Shown) -> None:
    image = studio.pictures.get(asked.picture, (asked.size, asked.size))
    made = design.export(_settings(asked)[0], image, asked.seed, kind, job.check)
    job.emit({"kind": "file", "type": EXPORTS[kind], "name": f"process.{kind}", "data": design.encoded(made)})


def _settings(asked: requests.Shown) -> tuple[design.Setting, design.Setting | None]:
    first, *other = (
        design.Setting.of(one.preset, asked.size, dict(one.keys)) for one in (asked.a, asked.b) if one is not None
    )
    return first, other[0] if other else None


def _generate(studio: Studio, job: Job, asked: requests.Generated) -> None:
    generate.generate(
        job, studio.models.get(asked.model), range(asked.seed, asked.seed + asked.n), asked.sampling(),
        path=studio.models.path(asked.model), images=studio.models.images(asked.model, asked.prior),
    )  # fmt: skip


def _strokes(studio: Studio, job: Job, asked: requests.Strokes) -> None:
    generator = studio.models.get(asked.model)
    photo = studio.pictures.get(asked.picture, generator.size, generator.channels)
    if asked.way == "kmeans":
        strokes.kmeans(job, photo, colors=asked.colors, smooth=asked.smooth, position=asked.position)
    elif asked.way == "photo":
        generate.tell_state(job, "painting", photo)
    else:
        strokes.cartoon(job, photo, edge=asked.edge, amount=asked.amount)


def _noised(studio: Studio, job: Job, asked: requests.Painted) -> None:
    generator = studio.models.get(asked.model)
    painting = strokes.read_painting(asked.painting, generator)
    strokes.show_noised(job, generator, painting, strength=asked.strength, seed=asked.seed)


def _edit(studio: Studio, job: Job, asked: requests.Painted) -> None:
    generator = studio.models.get(asked.model)
    painting = strokes.read_painting(asked.painting, generator)
    strokes.paint(
        job, generator, painting, strokes.read_mask(asked.mask, generator), asked.sampling(),
        strength=asked.strength, seeds=list(range(asked.seed, asked.seed + asked.n)),
        path=studio.models.path(asked.model),
    )  # fmt: skip


JOBS: dict[str, tuple[str, type[requests.Request], Work]] = {
    "design": ("quick", requests.Shown, _show),
    "diagnose": ("long", requests.Shown, _diagnose),
    **{f"export/{kind}": ("long", requests.Shown, partial(_export, kind)) for kind in EXPORTS},
    "generate": ("long", requests.Generated, _generate),
    "strokes": ("quick", requests.Strokes, _strokes),
    "noised": ("quick", requests.Painted, _noised),
    "edit": ("long", requests.Painted, _edit),
}
"""Name → queue, what the page asks, and the work."""


def _add_runs(app: FastAPI, held: list[Studio]) -> None:
    @app.get("/api/runs")
    def overview() -> dict[str, Any]:
        runs = held[0].runs
        return {**runs.overview(), "starting": runs.starting()}

    @app.get("/api/run")
    async def watch(name: str, request: Request) -> Response:
        held[0].runs.find(name)
        return StreamingResponse(
            _lines(held[0].watch(name, request.is_disconnected)), media_type="application/x-ndjson"
        )

    @app.get("/api/run/sample")
    def sample(name: str, file: str) -> Response:
        return Response(held[0].runs.sample(name, file), media_type="image/png")

    @app.post("/api/run/start")
    def start(asked: requests.Started) -> dict[str, Any]:
        settings = {f"process.{key}" if key in KEYS else key: value for key, value in asked.keys.items()}
        held[0].runs.start(asked.name, asked.data, asked.process, settings, asked.images)
        return {"name": asked.name}

    @app.post("/api/run/stop")
    def stop(asked: requests.Named) -> dict[str, Any]:
        held[0].runs.stop(asked.name)
        return {"name": asked.name}

    @app.post("/api/run/resume")
    def resume(asked: requests.Named) -> dict[str, Any]:
        held[0].runs.resume(asked.name)
        return {"name": asked.name}


def _add_results(app: FastAPI, held: list[Studio]) -> None:
    def found(where: str) -> tuple[Path, dict[str, Path]]:
        studio = held[0]
        if where == "runs":
            return studio.runs.folder, studio.runs.studies()
        root = studio.config.results
        return root or Path(), pages.pages_below(root) if root else {}

    def pick(where: str, page: str) -> tuple[Path, Path]:
        root, known = found(where)
        if page not in known:
            raise ValueError("there is no such page")
        return root, known[page]

    @app.get("/api/results")
    def results() -> dict[str, Any]:
        _, known = found("results")
        listed = [{"page": place, "title": pages.title_of(path)} for place, path in known.items()]
        return {"pages": listed, "missing": held[0].config.results is None}

    @app.get("/api/page")
    def page(where: str, page: str) -> dict[str, Any]:
        _, path = pick(where, page)
        return {"page": page, "blocks": list(pages.blocks_of(path)), "curves": pages.curves_of(path)}

    @app.get("/api/page/figure")
    def figure(where: str, page: str, source: str) -> Response:
        root, path = pick(where, page)
        data, kind = pages.figure_of(root, path, source)
        return Response(data, media_type=kind)
