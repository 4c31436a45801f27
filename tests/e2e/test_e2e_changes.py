"""Changes of a running pool, as its clients and its operator's audit log see them (stand-in engines in pods)."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import pytest

from e2e.scenarios import engine_metrics, standin_pool
from e2e.scenarios.api import ApiError
from e2e.scenarios.pools import wait_for
from e2e.scenarios.traffic import Trickle
from pdpool_api.names import Role, child_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Namespaces, QuietPool, Say

    from e2e.cluster import Cluster
    from e2e.scenarios.api import ClusterApi
    from e2e.scenarios.pools import PodView, Pool
    from e2e.scenarios.product import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

IN_ROTATION_S = 5.0
CORRECTED_S = 10.0
READY_S = 60.0
STEADY_S = 60.0
CHILDREN = ("configmaps", "deployments", "rolebindings", "roles", "serviceaccounts", "services")


def _prompts(pod: PodView) -> float:
    """Prompt tokens that an engine has seen so far, whatever their source."""
    return engine_metrics.read(pod.url).total(engine_metrics.PROMPT_TOKENS)


def _scale_decode(pool: Pool, replicas: int) -> None:
    pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": {"decode": {"replicas": replicas}}})


def _children(pool: Pool, resource: str) -> dict[str, str]:
    """Uid by name."""
    found = pool.api.items(resource, pool.namespace, pool.labels)
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}


def test_a_new_pod_serves_and_a_deleted_one_does_not(pool: Pool, say: Say) -> None:
    """Within 5 s of Ready a new decode pod gets requests, a deleted one gets none any more, and no request fails."""
    with Trickle(pool.service_url(), standin_pool.MODEL, every_s=0.1) as trickle:
        (old,) = pool.ready_pods(Role.DECODE)
        _scale_decode(pool, 2)
        wait_for(lambda: len(pool.ready_pods(Role.DECODE)) == 2, READY_S, "a second decode pod Ready", pool.summary)
        (new,) = [pod for pod in pool.ready_pods(Role.DECODE) if pod.name != old.name]
        took_s = wait_for(lambda: _prompts(new) > 0, IN_ROTATION_S, f"a request on {new.name}")
        say(f"in rotation {took_s:.1f} s after it was seen Ready")

        pool.api.delete("pods", old.name, pool.namespace)
        time.sleep(1.0)  # what was chosen before the deletion has arrived by then
        reached = _prompts(old)
        time.sleep(2.5)  # well within the 5 s that its preStop keeps it answering
        assert _prompts(old) == reached
        wait_for(lambda: len(pool.ready_pods(Role.DECODE)) == 2, READY_S, "its replacement Ready", pool.summary)

        _scale_decode(pool, 1)
        wait_for(lambda: len(pool.pods(Role.DECODE)) == 1, READY_S, "one decode pod left", pool.summary)
        pool.wait_ready(READY_S)
    outcomes = trickle.stop()
    assert trickle.failures() == []
    assert len(outcomes) > 50
    say(f"{len(outcomes)} requests, none failed")


def test_a_router_pod_is_replaced_without_a_failed_request(pool: Pool) -> None:
    """A router pod that leaves finishes what it accepted, and new connections reach its successor without a gap."""
    with Trickle(pool.service_url(), standin_pool.MODEL, every_s=0.1, keep_alive=False) as trickle:
        _replace_router_pods(pool)
    assert trickle.failures() == []
    pool.wait_ready(READY_S)


def _replace_router_pods(pool: Pool) -> None:
    where = ["--namespace", pool.namespace, f"deployment/{child_name(pool.name, Role.ROUTER)}"]
    pool.api.kubectl(["rollout", "restart", *where])
    pool.api.kubectl(["rollout", "status", *where, f"--timeout={READY_S:.0f}s"])
    wait_for(lambda: len(pool.pods(Role.ROUTER)) == 1, READY_S, "one router pod left", pool.summary)


@pytest.mark.parametrize("resource", CHILDREN)
def test_a_deleted_child_comes_back(pool: Pool, resource: str) -> None:
    """A child deleted by hand is there again within 10 s, as a new object of the same name."""
    before = _children(pool, resource)
    assert before
    victim = min(before)
    pool.api.delete(resource, victim, pool.namespace)

    def is_back() -> bool:
        return _children(pool, resource).get(victim, before[victim]) != before[victim]

    wait_for(is_back, CORRECTED_S, f"{resource}/{victim} back")
    if resource == "serviceaccounts":
        # The tokens of running pods died with the account they were issued for: only new pods get others.
        _replace_router_pods(pool)
    pool.wait_ready(READY_S)


def _replicas_changed(spec: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": spec["replicas"] + 1}


def _selector_changed(spec: dict[str, Any]) -> dict[str, Any]:
    return {"selector": dict.fromkeys(spec["selector"], "nobody")}


@pytest.mark.parametrize(
    ("resource", "role", "change"),
    [("deployments", Role.DECODE, _replicas_changed), ("services", Role.ROUTER, _selector_changed)],
    ids=["replicas", "selector"],
)
def test_a_changed_field_is_corrected(
    pool: Pool, resource: str, role: Role, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """A field of a child that is changed by hand is as before within 10 s."""
    selector = f"{pool.labels},pdpool.io/role={role}"
    (child,) = pool.api.items(resource, pool.namespace, selector)
    name, spec = child["metadata"]["name"], child["spec"]
    changed = pool.api.patch(resource, name, pool.namespace, {"spec": change(spec)})
    assert changed["spec"] != spec
    wait_for(
        lambda: (pool.api.get(resource, name, pool.namespace) or {}).get("spec") == spec,
        CORRECTED_S,
        f"{resource}/{name} corrected",
    )
    pool.wait_ready(READY_S)


def test_nothing_is_written_while_nothing_changes(
    cluster: Cluster, operator: Operator, quiet: QuietPool, say: Say
) -> None:
    """Q08: in 60 s and more of steady state the operator writes no child and no status of a pool."""
    left_s = quiet.since_s + STEADY_S - time.monotonic()
    if left_s > 0:
        say(f"watching {quiet.pool.name} for another {left_s:.0f} s")
        time.sleep(left_s)
    assert _writes(cluster, operator, quiet.pool, quiet.since) == []


def test_a_killed_operator_comes_back_without_a_write(
    cluster: Cluster, operator: Operator, quiet: QuietPool, pool: Pool
) -> None:
    """Q07: a killed operator acts again when restarted, and writes no child of a pool that is as it should be."""
    start = cluster.audit.now()
    operator.kill()
    operator.wait_ready()
    service = child_name(pool.name, Role.DECODE)
    before = _children(pool, "services")[service]
    pool.api.delete("services", service, pool.namespace)

    def has_acted() -> bool:
        return _children(pool, "services").get(service, before) != before

    wait_for(has_acted, READY_S, "the new operator acts", pool.summary)
    assert _writes(cluster, operator, pool, start) != []
    assert _writes(cluster, operator, quiet.pool, start) == []
    assert quiet.pool.is_ready()


def _writes(cluster: Cluster, operator: Operator, pool: Pool, start: Any) -> list[tuple[str, str, str]]:
    """What the operator was granted to change of a pool or its children since a moment."""
    return [
        (entry.verb, entry.resource, entry.name)
        for entry in cluster.audit.entries(start)
        if entry.is_write
        and entry.succeeded
        and entry.user == operator.user
        and entry.namespace == pool.namespace
        and (entry.name == pool.name or entry.name.startswith(f"{pool.name}-"))
    ]


def test_router_and_operator_meet_the_restricted_standard(
    api: ClusterApi, operator: Operator, namespaces: Namespaces, quiet: QuietPool
) -> None:
    """Where the restricted Pod Security Standard is enforced, operator and router are let in, and no lesser pod."""
    strict = namespaces.make("strict", {"pod-security.kubernetes.io/enforce": "restricted"})
    deployments = (
        api.get("deployments", operator.name, operator.namespace),
        api.get("deployments", child_name(quiet.pool.name, Role.ROUTER), quiet.pool.namespace),
    )
    for each in deployments:
        assert each is not None
        spec = copy.deepcopy(each["spec"]["template"]["spec"])
        for key in ("serviceAccountName", "serviceAccount"):
            spec.pop(key, None)  # of another namespace
        api.request("POST", f"/api/v1/namespaces/{strict}/pods", query={"dryRun": "All"}, body=_pod("one", spec))
    spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="restricted"):
        api.request("POST", f"/api/v1/namespaces/{strict}/pods", query={"dryRun": "All"}, body=_pod("one", spec))


def _pod(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
