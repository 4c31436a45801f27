"""A real Prometheus (Debian's package) as a host process, scraping the pods of pools and an exporter of GPU metrics.

Boundary: one process in a folder of the caller's, ended with the block. Debian builds it without discovery by the API
server, so that pods are listed for it over HTTP, with the labels that a PodMonitor gives.
"""

from __future__ import annotations

import json
import ssl
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import httpx

from e2e.cluster.debian import unpacked
from e2e.cluster.network import NODE_ADDRESS
from e2e.cluster.progress import Progress
from e2e.scenarios.pools import wait_for
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from e2e.scenarios.api import JsonObject
    from e2e.scenarios.pools import Pool

PORT: Final = 19_090
EVERY_S: Final = 2
READY_S: Final = 30.0
EXPORTER_POD: Final = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x"}
"""How an exporter's own pod is labelled; what it says of others becomes `exported_…`."""


@dataclass(frozen=True)
class Guard:
    """TLS and a password before a Prometheus: what it shows, whom it lets in."""

    certificate: Path
    key: Path
    authority: Path
    """Who signed the certificate."""
    user: str
    password: str
    password_hash: str
    """Of the password, by bcrypt."""

    @property
    def configuration(self) -> JsonObject:
        """As Prometheus wants it in a file of its own."""
        return {
            "tls_server_config": {"cert_file": str(self.certificate), "key_file": str(self.key)},
            "basic_auth_users": {self.user: self.password_hash},
        }


def configuration(pools: JsonObject, exporter: str | None, operators: Iterable[str] = ()) -> JsonObject:
    """What is scraped: pools (`found_at` or `fixed`), an exporter of GPU metrics, replicas of the operator."""
    every = {"scrape_interval": f"{EVERY_S}s", "scrape_timeout": f"{EVERY_S}s"}
    gpus = [{"targets": [exporter] if exporter else [], "labels": EXPORTER_POD}]
    # As the chart's PodMonitor: the operator says itself which pool a series is of.
    ours = [{"targets": list(operators), "labels": {"namespace": "pdpool-system"}}]
    return {
        "scrape_configs": [
            {"job_name": "pools", **every, **pools},
            {"job_name": "gpus", **every, "static_configs": gpus},
            {"job_name": "operator", **every, "honor_labels": True, "static_configs": ours},
        ]
    }


def found_at(discovery: str) -> JsonObject:
    """Pods that `http://<discovery>` lists."""
    return {"http_sd_configs": [{"url": f"http://{discovery}", "refresh_interval": f"{EVERY_S}s"}]}


def target(address: str, namespace: str, pod: str, pool: str, role: str) -> JsonObject:
    """One pod of a pool, with the labels that the operator's PodMonitor gives its series."""
    labels = {"namespace": namespace, "pod": pod, "pdpool_io_pool": pool, "pdpool_io_role": role}
    return {"targets": [address], "labels": labels}


def targets(pool: Pool) -> bytes:
    """The ready pods of a pool, as Prometheus' HTTP discovery wants them."""
    found = [
        target(
            (pod.admin_url if pod.role == Role.ROUTER else pod.url).removeprefix("http://"),
            pool.namespace,
            pod.name,
            pool.name,
            pod.role,
        )
        for pod in pool.pods()
        if pod.ready
    ]
    return json.dumps(found).encode()


@contextmanager
def running(
    folder: Path, scraped: JsonObject, host: str = NODE_ADDRESS, port: int = PORT, *, guard: Guard | None = None
) -> Iterator[str]:
    """Runs it for the block with a `configuration`; the URL under which it is reached.

    Raises:
        LateError: it does not answer.
    """
    program = unpacked("prometheus", "usr/bin/prometheus", Progress("prometheus"))
    file = folder / "prometheus.yml"
    file.write_text(json.dumps(scraped))
    url = f"{'https' if guard else 'http'}://{host}:{port}"
    command = [
        str(program),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={host}:{port}",
        "--storage.tsdb.retention.time=1h",
        "--log.level=warn",
    ]
    if guard is not None:
        web = folder / "web.yml"
        web.write_text(json.dumps(guard.configuration))
        command.append(f"--web.config.file={web}")
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_for(lambda: _is_ready(url, guard), READY_S, "Prometheus ready")
            yield url
        finally:
            process.terminate()


def _is_ready(url: str, guard: Guard | None) -> bool:
    trusted = ssl.create_default_context(cafile=guard.authority) if guard else True
    auth = (guard.user, guard.password) if guard else None
    try:
        return httpx.get(f"{url}/-/ready", timeout=2, verify=trusted, auth=auth).is_success
    except httpx.TransportError:
        return False
