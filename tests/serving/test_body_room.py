"""Bodies that are arriving share one limit, so that clients that stop short cannot fill the memory."""

import asyncio

import pytest

from tfaccel.serving.messages import BodyRoom, Request
from tfaccel.serving.request_error import RequestError

MAX_BYTES = 1000


def request(room, *, rest):
    """A request that announces a whole body, and sends the last byte when `rest` is set."""
    parts = [b"x" * (MAX_BYTES - 1)]

    async def receive():
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": True}
        await rest.wait()
        return {"type": "http.request", "body": b"y", "more_body": False}

    return Request("POST", "/", {b"content-length": b"%d" % MAX_BYTES}, receive, room)


def test_bodies_in_transfer_have_a_common_limit():
    async def main():
        room, rest = BodyRoom(), asyncio.Event()
        waiting = [asyncio.create_task(request(room, rest=rest).body(MAX_BYTES, 60)) for _ in range(16)]
        await asyncio.sleep(0)
        assert room.taken == 16 * (MAX_BYTES - 1)
        with pytest.raises(RequestError, match="taking all room for bodies; try again") as caught:
            await request(room, rest=rest).body(MAX_BYTES, 60)
        assert (caught.value.status, caught.value.headers) == (429, {"Connection": "close"})
        assert room.taken == 16 * (MAX_BYTES - 1)
        waiting.pop().cancel()
        await asyncio.sleep(0)
        rest.set()
        assert {len(body) for body in await asyncio.gather(*waiting)} == {MAX_BYTES}
        assert room.taken == 0
        assert len(await request(room, rest=rest).body(MAX_BYTES, 60)) == MAX_BYTES

    asyncio.run(main())


def test_a_body_that_is_late_gives_its_room_back():
    async def main():
        room = BodyRoom()
        with pytest.raises(RequestError, match=r"was not there after 0\.01 seconds"):
            await request(room, rest=asyncio.Event()).body(MAX_BYTES, 0.01)
        assert room.taken == 0

    asyncio.run(main())
