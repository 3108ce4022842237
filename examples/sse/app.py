"""A web page that shows the text of a job as it is made, through Server-Sent Events.

uvicorn --app-dir examples/sse app:app

Whoever reaches the port can submit jobs: leave it on this machine, or put your login before it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

from mlxq_producer import AsyncProducer
from mlxq_schemas.errors import MlxqError


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """One producer for the life of the server."""
    async with AsyncProducer(queue=os.environ.get("MLXQ_QUEUE", "captions")) as producer:
        app.state.producer = producer
        yield


async def page(request: Request) -> FileResponse:
    """The page itself."""
    del request
    return FileResponse(Path(__file__).with_name("index.html"))


async def submit(request: Request) -> JSONResponse:
    """Queue ``{"prompt": ..., "image": URL or nothing}``; answers with the job's id."""
    asked = await request.json()
    image = asked.get("image")
    # Only URLs: a path would be read from this server's own disk.
    images = [image] if image and image.startswith(("https://", "data:image/")) else []
    try:
        job_id = await request.app.state.producer.submit(prompt=asked["prompt"], images=images)
    except MlxqError as error:
        return JSONResponse({"code": error.code, "message": error.message}, status_code=400)
    return JSONResponse({"id": job_id})


async def events(request: Request) -> StreamingResponse:
    """The job's events; a browser that lost the connection goes on after the last it saw."""
    last = request.headers.get("last-event-id", "")
    start = int(last) + 1 if last.isdecimal() else 0
    stream = sse(request.app.state.producer, request.path_params["job_id"], start)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


async def sse(producer: AsyncProducer, job_id: str, start: int) -> AsyncIterator[str]:
    """Events as EventSource reads them: ``id`` is the event's number, ``data`` its JSON."""
    try:
        async for event in producer.follow(job_id, from_seq=start):
            data = event.model_dump_json(exclude_none=True)
            yield f"id: {event.seq}\nevent: {event.type}\ndata: {data}\n\n"
    except MlxqError as error:
        yield f"event: refused\ndata: {error.code}\n\n"


app = Starlette(
    routes=[
        Route("/", page),
        Route("/jobs", submit, methods=["POST"]),
        Route("/jobs/{job_id}/events", events),
    ],
    lifespan=lifespan,
)
