"""An operator that ends while a pod drains, and one that goes on where it was."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx
import pytest

from pdpool_api import names
from tests.operator.harness import Json, eventually, pool
from tests.operator.site import holds, leads, make_all_ready, settled

if TYPE_CHECKING:
    from tests.operator.site import Site

# On one worker with the others of this group: an operator of one would act on the pools of the other.
pytestmark = [pytest.mark.api, pytest.mark.xdist_group("upgrade")]

DECODE = f"{names.LABEL_ROLE}=decode"
MARK = {names.ANNOTATION_DRAINING: "2026-01-01T00:00:00Z", names.ANNOTATION_DELETION_COST: "-1000000"}


def test_a_restart_amid_a_drain_removes_just_the_marked_pod(site_apart: Site) -> None:
    """Of a fixed and of an autoscaled role: no second pod is marked, and the marked one does not stay.

    Nothing of a drain is remembered but the mark. A role that follows demand, and of which nothing can be read, holds
    the size that its workload shows: the marked pod is not part of it.
    """
    site, api = site_apart, site_apart.api
    scaled = {"hardware": "cpu", "drainSeconds": 5, "autoscaling": {"maxReplicas": 3}}
    shapes: list[Json] = [{"hardware": "cpu", "drainSeconds": 5, "replicas": 3}, scaled]
    namespaces = [site.namespace() for _ in shapes]
    first = site.start().wait_ready()
    second = None
    try:
        for namespace, decode in zip(namespaces, shapes, strict=True):
            api.apply("inferencepools", namespace, pool("tiny", namespace, decode=decode))
            settled(api, namespace, "tiny")
        assert first.stop() == 0
        fixed, following = namespaces
        api.merge("inferencepools", fixed, "tiny", {"spec": {"decode": {"replicas": 2}}})
        (grown,) = api.items("deployments", following, DECODE)
        api.merge("deployments", following, grown["metadata"]["name"], {"spec": {"replicas": 3}})
        victims = {namespace: _marked(site, namespace) for namespace in namespaces}
        second = site.start().wait_ready()
        eventually(lambda: holds(leads(second)))
        for namespace, (victim, others) in victims.items():
            eventually(lambda each=namespace, gone=victim: _has_left(site, each, gone))  # type: ignore[misc]
            make_all_ready(api, namespace, "tiny")
            pods = [each for each in api.items("pods", namespace, DECODE) if _stays(each)]
            assert {each["metadata"]["uid"] for each in pods} == others
            (deployment,) = api.items("deployments", namespace, DECODE)
            assert deployment["spec"]["replicas"] == 2
    finally:
        for each in (first, second):
            if each is not None and each.running:
                each.stop()


def _marked(site: Site, namespace: str) -> tuple[str, set[str]]:
    """Marks one of three ready pods as an operator does; its uid, and those of the others."""
    eventually(lambda: holds(len(site.api.items("pods", namespace, DECODE)) == 3))
    site.api.make_ready(namespace, names.LABEL_POOL)
    victim, *others = site.api.items("pods", namespace, DECODE)
    site.api.merge("pods", namespace, victim["metadata"]["name"], {"metadata": {"annotations": MARK}})
    return victim["metadata"]["uid"], {each["metadata"]["uid"] for each in others}


def _has_left(site: Site, namespace: str, victim: str) -> None:
    pods = site.api.items("pods", namespace, DECODE)
    others = [each for each in pods if each["metadata"]["uid"] != victim]
    assert not [each for each in others if names.ANNOTATION_DRAINING in (each["metadata"].get("annotations") or {})]
    with contextlib.suppress(httpx.HTTPStatusError):  # it went meanwhile
        site.api.make_ready(namespace, names.LABEL_POOL)
    assert not [each for each in pods if each["metadata"]["uid"] == victim and _stays(each)]


def _stays(pod: Json) -> bool:
    return "deletionTimestamp" not in pod["metadata"]
