"""The web application. It enqueues jobs, reports on them, and runs none."""

import math
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from penstock import EnqueueUnknown, Handle, JobNotFound, QueueFull, StoreUnavailable
from pydantic import BaseModel, PositiveInt
from starlette.middleware.sessions import SessionMiddleware

from shop import staff
from shop.app import app
from shop.database import Order, Session
from shop.orders import enqueue_confirm
from shop.reports import sales


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    app.import_tasks()  # an error in a module of tasks appears now, not in a request
    yield
    await app.aclose()


web = FastAPI(title="Shop", lifespan=lifespan)
# Without SECRET_KEY, each process has its own, and a login is known to one of them alone.
web.add_middleware(SessionMiddleware, secret_key=os.environ.get("SECRET_KEY") or secrets.token_hex())
web.include_router(staff.routes)
web.mount("/staff/jobs", staff.dashboard)


class NewOrder(BaseModel):
    product: str
    quantity: PositiveInt
    email: str


class Accepted(BaseModel):
    job: str
    order: int | None = None


@web.post("/orders", status_code=201)
def create_order(new: NewOrder) -> Accepted:
    with Session.begin() as db:
        order = Order(**new.model_dump())
        db.add(order)
        db.flush()
        order_id = order.id
    # After the commit: a worker may start the job at once, and must find the order.
    return Accepted(job=enqueue_confirm(order_id), order=order_id)


@web.post("/reports/{year}", status_code=202)
async def create_report(year: int) -> Accepted:
    handle = await sales.aenqueue(year)
    return Accepted(job=handle.id)


async def existing_job(id: str) -> Handle[Any]:
    # A real shop checks here that the job belongs to the user.
    try:
        return await app.ahandle(id)
    except JobNotFound:
        raise HTTPException(404, f"no job {id}") from None


AnyHandle = Annotated[Handle[Any], Depends(existing_job)]


@web.get("/jobs/{id}")
async def show_job(handle: AnyHandle) -> dict[str, Any]:
    job = await handle.ajob()
    if job is None:  # removed since
        raise HTTPException(404, f"no job {handle.id}")
    return job.to_dict()


@web.delete("/jobs/{id}", status_code=202)
async def cancel_job(handle: AnyHandle) -> dict[str, str | None]:
    return {"state": await handle.acancel(reason="cancelled by the user")}


@web.get("/jobs/{id}/progress", response_class=EventSourceResponse)
async def follow_job(handle: AnyHandle) -> AsyncIterator[ServerSentEvent]:
    async for progress in handle.follow_progress(every="250ms"):
        yield ServerSentEvent(event="progress", data={"done": progress.done, "of": progress.of})
    job = await handle.ajob()
    yield ServerSentEvent(event="end", data=None if job is None else job.to_dict())


@web.get("/healthz")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@web.exception_handler(QueueFull)
async def queue_full(_: Request, error: QueueFull) -> JSONResponse:
    wait = str(math.ceil(error.retry_after or 1))
    return JSONResponse({"detail": "too much to do"}, 503, {"Retry-After": wait})


@web.exception_handler(StoreUnavailable)
@web.exception_handler(EnqueueUnknown)
async def store_unavailable(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "jobs are not available"}, 503, {"Retry-After": "5"})
