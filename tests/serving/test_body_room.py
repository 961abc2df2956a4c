"""Bodies that are arriving share one limit, so that clients that stop short cannot fill the memory."""

import asyncio

import pytest

from tfaccel.extras.serving.messages import BodyRoom, Request, RequestError

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


LATE_OVER_GRPC = """
import asyncio, socket
import grpc
from tfaccel.extras.serving.grpc_server import GrpcServer
from tfaccel.extras.serving.messages import BodyRoom
from tfaccel.extras.serving.options import ServeOptions

async def main():
    room = BodyRoom()
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        server = GrpcServer(None, ServeOptions(max_request_bytes=1000, body_seconds=30), reserved, room=room)
        await server.start()
    async with grpc.aio.insecure_channel(server.target) as channel:
        method = "/tensorflow.serving.ModelService/HandleReloadConfigRequest"
        late = [channel.stream_unary(method)() for _ in range(17)]  # calls that do not send their message
        for call in late:
            await call.wait_for_connection()
        done, waiting = await asyncio.wait([asyncio.ensure_future(call.code()) for call in late], timeout=3)
        print([code.result().name for code in done], room.taken)
        print([await call.details() for call in late if call.done()])
        try:
            await channel.unary_unary(method)(b"")  # a body that is there at once needs no room
        except grpc.aio.AioRpcError as error:
            print(error.code().name)
        for call in late:
            call.cancel()
        await asyncio.wait(waiting)
        for _ in range(500):
            await asyncio.sleep(0.01 if room.taken else 0)
        print(room.taken)
    await server.stop(lambda: True)

asyncio.run(main())
"""


def test_bodies_that_stop_short_over_grpc_share_it_too(run_python):
    refused, why, at_once, left = run_python(LATE_OVER_GRPC).stdout.splitlines()
    assert refused == "['RESOURCE_EXHAUSTED'] 16000"
    assert why == "['The bodies of other requests are taking all room for bodies; try again.']"
    assert (at_once, left) == ("UNIMPLEMENTED", "0")
