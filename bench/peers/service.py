"""A Starlette service whose POST is protected by one of two middlewares, both on Redis."""

import os

from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

ANSWER = {"id": "pay_0123456789", "status": "succeeded", "note": "x" * 146}
URL = os.environ["REDIS_URL"]


async def pay(request):
    await request.body()
    return JSONResponse(ANSWER, 201)


def middleware():
    if os.environ["PEER"] == "idemkit":
        from idemkit import HttpConfig, IdempotencyMiddleware, RedisBackend

        config = HttpConfig(scope=lambda request: request.headers.get("authorization", "anonymous"))
        # More than the client's default of 100, which 64 clients at once exhaust.
        backend = RedisBackend.from_url(URL, max_connections=1000)
        return Middleware(IdempotencyMiddleware, backend=backend, config=config)
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import RedisBackend

    return Middleware(IdempotencyHeaderMiddleware, backend=RedisBackend(redis=Redis.from_url(URL)))


app = Starlette(routes=[Route("/payments", pay, methods=["POST"])], middleware=[middleware()])
