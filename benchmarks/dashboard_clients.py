"""Clients of a dashboard without a browser: each has a stream, and refreshes its page as the script does."""

from __future__ import annotations

import asyncio
import sys

_PAGES = ("/", "/queues", "/queues/default", "/jobs", "/jobs?queue=default", "/jobs?state=running")


async def _request(port: int, path: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode())
    return reader, writer


async def _browse(port: int, path: str, open_now: asyncio.Semaphore) -> None:
    stream, _ = await _request(port, "/events")
    open_now.release()
    asking: asyncio.Task[None] | None = None
    async for line in stream:
        if line.startswith(b"data:") and b'"changed":true' in line and (asking is None or asking.done()):
            asking = asyncio.create_task(_refresh(port, path))


async def _refresh(port: int, path: str) -> None:
    reader, writer = await _request(port, path, "X-Penstock-Live: 1")
    await reader.read()
    writer.close()


async def _main(port: int, count: int) -> None:
    open_now = asyncio.Semaphore(0)
    clients = [asyncio.create_task(_browse(port, _PAGES[n % len(_PAGES)], open_now)) for n in range(count)]
    for _ in range(count):
        await open_now.acquire()
    print("open", flush=True)
    await asyncio.gather(*clients)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
