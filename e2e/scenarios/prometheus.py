"""A real Prometheus (Debian's package) as a host process, scraping the pods of pools and an exporter of GPU metrics.

Boundary: one process in a folder of the caller's, ended with the block. Debian builds it without discovery by the API
server, so that pods are listed for it over HTTP, with the labels `namespace` and `pod` that a PodMonitor gives.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import httpx
import yaml

from e2e.cluster.debian import unpacked
from e2e.cluster.network import NODE_ADDRESS
from e2e.cluster.progress import Progress
from e2e.scenarios.pools import wait_for
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.scenarios.pools import Pool

PORT: Final = 19_090
EVERY_S: Final = 2
READY_S: Final = 30.0
EXPORTER_POD: Final = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x"}
"""How an exporter's own pod is labelled; what it says of others becomes `exported_…`."""


def configuration(discovery: str, exporter: str) -> dict[str, Any]:
    """What is scraped: the targets that `http://<discovery>` lists, and an exporter at an address."""
    every = {"scrape_interval": f"{EVERY_S}s", "scrape_timeout": f"{EVERY_S}s"}
    found = [{"url": f"http://{discovery}", "refresh_interval": f"{EVERY_S}s"}]
    fixed = [{"targets": [exporter], "labels": EXPORTER_POD}]
    return {
        "scrape_configs": [
            {"job_name": "pools", **every, "http_sd_configs": found},
            {"job_name": "gpus", **every, "static_configs": fixed},
        ]
    }


def targets(pool: Pool) -> bytes:
    """The ready pods of a pool, as Prometheus' HTTP discovery wants them."""
    found = [
        {
            "targets": [(pod.admin_url if pod.role == Role.ROUTER else pod.url).removeprefix("http://")],
            "labels": {"namespace": pool.namespace, "pod": pod.name},
        }
        for pod in pool.pods()
        if pod.ready
    ]
    return json.dumps(found).encode()


@contextmanager
def running(folder: Path, discovery: str, exporter: str) -> Iterator[str]:
    """Runs it for the block; the URL under which pods and host reach it.

    Raises:
        LateError: it does not answer.
    """
    program = unpacked("prometheus", "usr/bin/prometheus", Progress("prometheus"))
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(configuration(discovery, exporter)))
    url = f"http://{NODE_ADDRESS}:{PORT}"
    command = [
        str(program),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={NODE_ADDRESS}:{PORT}",
        "--storage.tsdb.retention.time=1h",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for(lambda: _is_ready(url), READY_S, "Prometheus ready")
            yield url
        finally:
            process.terminate()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=2).is_success
    except httpx.TransportError:
        return False
