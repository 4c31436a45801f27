"""An operator of another version takes over live pools, and rolls nothing of them by itself."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx
import pytest

from pdpool_api import names
from tests.operator.harness import Json, eventually, pool
from tests.operator.site import generations, holds, make_all_ready, seen

if TYPE_CHECKING:
    from tests.operator.site import Site

# On one worker with the others of this group: an operator of one would act on the pools of the other.
pytestmark = [pytest.mark.api, pytest.mark.xdist_group("upgrade")]

PREFILL, DECODE = (f"{names.LABEL_ROLE}={role}" for role in ("prefill", "decode"))


def test_another_version_rolls_nothing_until_an_edit_does(site_apart: Site) -> None:
    """Other defaults, arguments, probes, ports, shapes and names of revisions cost a live pool no write.

    Drift is corrected towards what ran, sizes follow, a new pool is made by the new version; an edit that rolls anyway
    takes up what is new.
    """
    site = site_apart
    first = site.start("--engine-image=engine:1").wait_ready()
    second = None
    namespaces = [site.namespace() for _ in range(4)]
    still, drifts, grows, rolls = namespaces
    shapes: list[Json] = [{"mode": "Auto"}, {}, {}, {}]
    try:
        for namespace, shape in zip(namespaces, shapes, strict=True):
            site.api.apply("inferencepools", namespace, pool("tiny", namespace, **shape))
            make_all_ready(site.api, namespace, "tiny")
        assert first.stop() == 0
        before = {namespace: generations(site.api, namespace) for namespace in namespaces}
        since = site.cluster.audit.now()
        second = site.start("--engine-image=engine:2", module="tests.operator.other_version").wait_ready()
        _new_pool_is_made_by_it(site)
        _drift_is_corrected(site, drifts)
        _sizes_follow(site, grows)
        assert site.child_writes(since, {still, rolls}) == []
        assert generations(site.api, still) == before[still]
        _an_edit_takes_up_what_is_new(site, rolls)
    finally:
        for each in (first, second):
            if each is not None and each.running:
                each.stop()


def _container(site: Site, namespace: str, selector: str = DECODE) -> Json:
    (found,) = site.api.items("deployments", namespace, selector)
    container: Json = found["spec"]["template"]["spec"]["containers"][0]
    return container


def _new_pool_is_made_by_it(site: Site) -> None:
    namespace = site.namespace()
    site.api.apply("inferencepools", namespace, pool("tiny", namespace))
    seen(site.api, namespace, "tiny")
    found = _container(site, namespace)
    assert found["image"] == "engine:2"
    assert found["args"][-1] == "--a-new-flag"


def _drift_is_corrected(site: Site, namespace: str) -> None:
    (before,) = site.api.items("deployments", namespace, DECODE)
    patch = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "theirs"}]
    path = site.api.path("deployments", namespace, before["metadata"]["name"])
    site.api.request("PATCH", path, patch, content_type="application/json-patch+json")

    def corrected() -> None:
        (after,) = site.api.items("deployments", namespace, DECODE)
        assert after["metadata"]["generation"] == before["metadata"]["generation"] + 2
        assert after["spec"]["template"] == before["spec"]["template"]

    eventually(corrected)


def _sizes_follow(site: Site, namespace: str) -> None:
    pods = {each["metadata"]["uid"] for each in site.api.items("pods", namespace, names.LABEL_REVISION)}
    site.api.merge("inferencepools", namespace, "tiny", {"spec": {"decode": {"replicas": 2}}})
    eventually(lambda: holds(len(site.api.items("pods", namespace, DECODE)) == 2))
    make_all_ready(site.api, namespace, "tiny")
    now = {each["metadata"]["uid"] for each in site.api.items("pods", namespace, names.LABEL_REVISION)}
    assert pods <= now
    assert _container(site, namespace)["image"] == "engine:1"


def _an_edit_takes_up_what_is_new(site: Site, namespace: str) -> None:
    site.api.merge("inferencepools", namespace, "tiny", {"spec": {"model": {"servedNames": ["other"]}}})

    def rolled() -> None:
        with contextlib.suppress(httpx.HTTPStatusError):  # a pod that went meanwhile
            site.api.make_ready(namespace, names.LABEL_POOL)
        for selector in (PREFILL, DECODE):
            assert len(site.api.items("deployments", namespace, selector)) == 1
            found = _container(site, namespace, selector)
            assert found["image"] == "engine:2"
            assert found["args"][-1] == "--a-new-flag"

    eventually(rolled, timeout_s=120)
