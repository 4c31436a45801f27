"""What the log says of endpoints."""

from __future__ import annotations

import structlog

from pdpool_api.names import Role
from pdpool_router.edge.news import EndpointNews
from pdpool_router.records import Endpoint
from pdpool_router.state.endpoints import Endpoints
from pdpool_router.state.inflight import Inflight


def decode(uid: str, *, draining: bool = False) -> Endpoint:
    return Endpoint(uid=uid, name=f"pod-{uid}", role=Role.DECODE, host="10.0.0.1", port=8000, draining=draining)


def test_each_change_of_an_endpoint_is_said_once() -> None:
    """Coming, failing, draining and going are one line each, however often it is looked at."""
    endpoints = Endpoints(Inflight(), clock=lambda: 0.0)
    news = EndpointNews(endpoints)
    with structlog.testing.capture_logs() as lines:
        endpoints.replace([decode("a"), decode("b")])
        news.tell()
        news.tell()
        endpoints.health.failed("a", certain=True)
        news.tell()
        endpoints.replace([decode("b", draining=True)])
        news.tell()
        endpoints.replace([])
        news.tell()
        news.tell()
    said = [(line["log_level"], line["event"], line["endpoint"], line["state"]) for line in lines]
    assert said == [
        ("info", "endpoint", "pod-a", "ready"),
        ("info", "endpoint", "pod-b", "ready"),
        ("warning", "endpoint", "pod-a", "failing"),
        ("info", "endpoint gone", "pod-a", "failing"),
        ("info", "endpoint", "pod-b", "draining"),
        ("info", "endpoint gone", "pod-b", "draining"),
    ]
