"""Startup probe, run by the image's python3 as `startup.py PORT NAME`: 0 once the engine is healthy and serves NAME."""

import http.client
import json
import sys

PORT, NAME = int(sys.argv[1]), sys.argv[2]


def body(path: str) -> bytes:
    """Body of a GET that must be answered with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=4)
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        sys.exit(f"{path} answers {answer.status}")
    return answer.read()


try:
    body("/health")
    served = [model["id"] for model in json.loads(body("/v1/models"))["data"]]
except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as fault:
    sys.exit(f"not serving yet: {fault!r}")
if NAME not in served:
    sys.exit(f"serves {served}, not {NAME}")
