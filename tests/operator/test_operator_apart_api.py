"""What needs a control plane where nothing else happens: operators that come and go, and writes that are counted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from pdpool_api import names
from tests.operator.harness import PATHS, Json, eventually, pool
from tests.operator.site import (
    CHILDREN,
    decode_number,
    generations,
    holds,
    leads,
    make_all_ready,
    seen,
    settled,
    small,
)

if TYPE_CHECKING:
    from tests.operator.harness import Operator
    from tests.operator.site import Site


# On one worker, one after another: an operator of one would act on the pools of the other.
pytestmark = [pytest.mark.api, pytest.mark.xdist_group("apart")]


def test_nothing_is_written_when_nothing_differs(site_apart: Site) -> None:
    """Pools at rest, written in ways that the API server rewrites, cost no write; nor does a label on them (Q08).

    The window is scaled to 15 s.
    """
    operator = site_apart.start().wait_ready()
    try:
        _rest(site_apart)
    finally:
        assert operator.stop() == 0


def _rest(site: Site) -> None:
    api = site.api
    env = [{"name": f"V{number}", "value": str(number)} for number in range(8)]
    rich = {
        "hardware": "cpu",
        "env": [*env, {"name": "EMPTY", "value": ""}, {"name": "C", "value": "1000m"}],
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "2048Mi"}},
        "template": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
            "volumes": [{"name": "models", "hostPath": {"path": "/models"}}, {"name": "e", "emptyDir": {}}],
            "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
            "securityContext": {"runAsUser": 0},
        },
    }
    plain = {"hardware": "cpu", "resources": {}, "replicas": 0}
    gpu = {"parallelism": {"tensor": 2}}
    namespaces = [site.namespace() for _ in range(3)]
    shapes: list[Json] = [{}, {"prefill": rich, "decode": plain}, {"prefill": gpu, "decode": gpu}]
    for each, shape in zip(namespaces, shapes, strict=True):
        api.apply("inferencepools", each, pool("still", each, **shape))
    for each in namespaces:
        settled(api, each, "still")
        if shapes[namespaces.index(each)] != shapes[1]:
            make_all_ready(api, each, "still")
    time.sleep(3)
    before = {each: generations(api, each) for each in namespaces}
    since = site.cluster.audit.now()
    for each in namespaces:
        api.merge("inferencepools", each, "still", {"metadata": {"labels": {"touched": "yes"}}})
    time.sleep(15)
    assert site.child_writes(since, set(namespaces)) == []
    assert {each: generations(api, each) for each in namespaces} == before
    statuses = [each for each in site.cluster.audit.entries(since) if each.resource == "inferencepools/status"]
    assert not [each for each in statuses if each.namespace in namespaces]


def test_one_of_two_replicas_acts_and_the_other_takes_over(site_apart: Site) -> None:
    """After kill -9 of the acting replica the other acts within 60 s and writes only what differs (Q03, Q07).

    Meanwhile a deleted pool's children go without any operator (Q04), and clean restarts write no child.
    """
    site = site_apart
    api, namespace = site.api, site.namespace()
    first, second = site.start().wait_ready(), None
    later: list[Operator] = []
    try:
        eventually(lambda: holds(leads(first)))
        second = site.start().wait_ready()
        for name in ("p1", "p2", "p3"):
            api.apply("inferencepools", namespace, small(name, namespace))
        seen(api, namespace, "p1", "p2", "p3")
        assert not leads(second)
        assert "applied" not in second.log.read_text()
        first.kill()
        since, ended = site.cluster.audit.now(), time.monotonic()
        api.delete("inferencepools", namespace, "p3")
        api.apply("inferencepools", namespace, small("p2", namespace, 7))
        api.apply("inferencepools", namespace, small("p4", namespace))
        eventually(lambda: holds(not api.items("deployments", namespace, f"{names.LABEL_POOL}=p3")), timeout_s=25)
        assert site.child_writes(since) == []
        eventually(lambda: holds(leads(second)), timeout_s=60)
        assert time.monotonic() - ended < 60
        seen(api, namespace, "p1", "p2", "p4")
        writes = site.child_writes(since, {namespace})
        # The record of the accepted spec goes with every edit.
        writes = [each for each in writes if "controllerrevisions" not in each]
        assert [each for each in writes if "p4-" not in each] == [each for each in writes if "/p2-decode" in each]
        assert len([each for each in writes if "/p2-decode" in each]) == 1
        assert decode_number(api, namespace, "p2") == "7"
        assert len(api.children(namespace)) == 3 * CHILDREN
        before = generations(api, namespace)
        assert second.stop() == 0
        since = site.cluster.audit.now()
        pools = len(api.request("GET", PATHS["inferencepools"] + "/inferencepools")["items"])
        for _ in range(2):
            later.append(site.start().wait_ready())
            # The Lease was given back: no need to wait until it expires.
            eventually(lambda: holds(leads(later[-1])), timeout_s=25)
            eventually(lambda: holds(_looks(later[-1]) >= pools))
            assert later[-1].stop() == 0
        assert site.child_writes(since, {namespace}) == []
        assert generations(api, namespace) == before
    finally:
        for each in (first, second, *later):
            if each is not None and each.running:
                each.stop()


def _looks(operator: Operator) -> float:
    """How many times it has looked at a pool."""
    return operator.metric("pdpool_operator_reconcile_seconds_count")
