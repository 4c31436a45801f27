"""The store of live objects, fed by watches and lists that come late and out of order."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdpool_api import names
from pdpool_operator.observe.cluster import Cluster, pool_owner
from pdpool_operator.records import PODS, POOLS, SERVICES, WATCHED, ChildKey, Listed, PoolRef

REF = PoolRef("ns", "tiny")


def pool(version: int, uid: str = "u1", name: str = "tiny") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"at": version}}


def listed(*objects: dict[str, Any]) -> list[Listed]:
    metadata = [each["metadata"] for each in objects]
    return [
        Listed(of["namespace"], of["name"], int(of["resourceVersion"]), lambda each=each: each)  # type: ignore[misc]
        for each, of in zip(objects, metadata, strict=True)
    ]


def service(version: int, name: str = "s", owner: str = "u1", *, group: str = names.GROUP) -> dict[str, Any]:
    reference = {"apiVersion": f"{group}/v1", "kind": names.KIND, "name": "tiny", "uid": owner, "controller": True}
    metadata = {"name": name, "namespace": "ns", "uid": f"{name}-{version}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "ownerReferences": [reference]}}


def pod(version: int, name: str, of_pool: str = "tiny", *, of: str = "tiny-decode-r1-5c9") -> dict[str, Any]:
    labels = {names.LABEL_POOL: of_pool, names.LABEL_ROLE: "decode", names.LABEL_REVISION: "r1"}
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": str(version), "labels": labels}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": of, "controller": True}
    return {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": {"big": 1}, "status": {"phase": "Running"}}


def versions(cluster: Cluster) -> dict[str, int]:
    observed = cluster.observed(REF)
    assert observed is not None
    return {key.name: int(live["metadata"]["resourceVersion"]) for key, live in observed.children.items()}


def test_children_are_found_by_their_owner() -> None:
    """A pool's children are those whose controller has its uid and group; another life's are not."""
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    assert cluster.put(SERVICES, service(2, "ours")) == REF
    cluster.put(SERVICES, service(3, "before", owner="u0"))
    assert cluster.put(SERVICES, service(4, "foreign", group="inference.networking.k8s.io")) is None
    observed = cluster.observed(REF)
    assert observed is not None
    assert set(observed.children) == {ChildKey("Service", "ours")}


def test_an_owner_counts_only_as_controller_of_our_group() -> None:
    """The same kind in another group, and a reference that does not control, are no owners (Q23)."""
    assert pool_owner(service(1, group="inference.networking.x-k8s.io")) is None
    plain = service(1)
    plain["metadata"]["ownerReferences"][0]["controller"] = False
    assert pool_owner(plain) is None


def test_losing_an_owner_wakes_the_pool_that_lost() -> None:
    """A child whose owner reference goes away still concerns the pool that it was of."""
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    cluster.put(SERVICES, service(2))
    orphan = service(3)
    del orphan["metadata"]["ownerReferences"]
    assert cluster.put(SERVICES, orphan) == REF


def test_late_events_change_nothing() -> None:
    """An older version, a repeated one, and a deletion older than what is known are ignored."""
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    cluster.put(SERVICES, service(5))
    assert cluster.put(SERVICES, service(4)) is None
    assert cluster.put(SERVICES, service(5)) is None
    assert cluster.remove(SERVICES, service(4)) is None
    assert versions(cluster) == {"s": 5}
    assert cluster.remove(SERVICES, service(6)) == REF
    assert cluster.replace(SERVICES, listed(service(5)), 5) == set()
    assert versions(cluster) == {}


def test_nothing_is_known_until_every_kind_was_listed() -> None:
    """The store is complete only after one list of each kind: until then absent may mean unread."""
    cluster = Cluster()
    for resource in WATCHED:
        assert not cluster.complete
        cluster.replace(resource, [], 1)
    assert cluster.complete


def test_pods_are_found_by_label_and_owner_and_trimmed() -> None:
    """Pods of the pool are there with their status, their node and what they hold; those of another pool are not.

    Nor is one that only has the pool's labels: of nobody, of somebody else's ReplicaSet, or of another pool's.
    """
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    assert cluster.put(PODS, pod(2, "a")) == REF
    assert cluster.put(PODS, pod(3, "b", "other")) is None
    bare = pod(4, "c")
    del bare["metadata"]["ownerReferences"]
    for stray in (bare, pod(5, "d", of="web-5c9"), pod(6, "e", of="tiny-2-decode-r1-5c9")):
        cluster.put(PODS, stray)
    observed = cluster.observed(REF)
    assert observed is not None
    (only,) = observed.pods
    assert only["status"] == {"phase": "Running"}
    assert only["spec"] == {"nodeName": "", "limits": []}


def test_pods_that_nobody_can_end_are_given_up() -> None:
    """A pod that terminates is there until a minute after it was to have ended: then its node is lost, and so is it."""
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    cluster.put(PODS, pod(2, "stays"))
    for version, name, ends in ((3, "leaves", "2026-01-01T00:05:00Z"), (4, "odd", "soon")):
        leaving = pod(version, name)
        leaving["metadata"]["deletionTimestamp"] = ends
        cluster.put(PODS, leaving)
    ends_s = datetime(2026, 1, 1, 0, 5, tzinfo=UTC).timestamp()
    for now_s, gone in ((0.0, set()), (ends_s + 59, set()), (ends_s + 60, {"leaves"}), (ends_s + 1e6, {"leaves"})):
        observed = cluster.observed(REF, now_s)
        assert observed is not None
        assert {each["metadata"]["name"] for each in observed.pods} == {"stays", "leaves", "odd"} - gone


def test_of_managed_fields_only_ours_are_kept() -> None:
    """Other managers' entries are half of an object's size, and never read."""
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    child = service(2)
    child["metadata"]["managedFields"] = [{"manager": "kubectl"}, {"manager": "pdpool", "operation": "Apply"}]
    cluster.put(SERVICES, child)
    observed = cluster.observed(REF)
    assert observed is not None
    assert observed.children[ChildKey("Service", "s")]["metadata"]["managedFields"] == [
        {"manager": "pdpool", "operation": "Apply", "fieldsV1": {}}
    ]


def test_objects_that_are_owned_alike_share_what_says_so() -> None:
    """Hundreds of pools own the same fields of their children: each set of fields is in memory once."""
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    for name, fields in (("a", {"f:spec": {}}), ("b", {"f:spec": {}}), ("c", {"f:data": {}})):
        child = service(2, name)
        child["metadata"]["managedFields"] = [{"manager": "pdpool", "operation": "Apply", "fieldsV1": fields}]
        cluster.put(SERVICES, child)
        assert child["metadata"]["managedFields"][0]["fieldsV1"] is fields, "what was handed in stays as it was"
    observed = cluster.observed(REF)
    assert observed is not None
    owned = [observed.children[ChildKey("Service", name)]["metadata"]["managedFields"][0]["fieldsV1"] for name in "abc"]
    assert owned[0] is owned[1]
    assert owned == [{"f:spec": {}}, {"f:spec": {}}, {"f:data": {}}]


def test_storage_that_was_put_back_is_believed() -> None:
    """A consistent list that is older than what is known means a restored backup: only the list counts then."""
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    cluster.replace(SERVICES, listed(service(50, "a"), service(51, "b")), 60)
    assert cluster.replace(SERVICES, listed(service(20, "a")), 30) == set()
    assert cluster.replace(SERVICES, listed(service(20, "a")), 30, consistent=True) == {REF}
    assert versions(cluster) == {"a": 20}
    assert cluster.put(SERVICES, service(31, "a")) == REF


@given(st.data())
def test_any_order_of_watch_and_lists_ends_in_the_truth(data: st.DataObject) -> None:
    """Whatever stale lists fall between the events of a watch, the store ends as the history does.

    Events of what is known already may be left out.
    """
    history: list[tuple[str, int, bool]] = []  # name, version, exists from then on
    alive: set[str] = set()
    for version in range(2, 2 + data.draw(st.integers(1, 14), label="events")):
        name = data.draw(st.sampled_from("abc"), label="name")
        exists = name not in alive or data.draw(st.booleans(), label="exists")
        alive = alive | {name} if exists else alive - {name}
        history.append((name, version, exists))
    cluster = Cluster()
    cluster.put(POOLS, pool(1))
    for name, version, exists in history:
        event = service(version, name)
        if not exists:
            cluster.remove(SERVICES, event)
        elif not (cluster.knows(SERVICES, event) and data.draw(st.booleans(), label="left out")):
            cluster.put(SERVICES, event)
        if data.draw(st.booleans(), label="a list comes"):
            # A list may be older than what the watch has shown, or newer.
            upto = data.draw(st.integers(0, len(history)), label="list as of")
            items, as_of = _state(history[:upto])
            cluster.replace(SERVICES, listed(*items), as_of)
    items, as_of = _state(history)
    expected = {each["metadata"]["name"]: int(each["metadata"]["resourceVersion"]) for each in items}
    assert versions(cluster) == expected
    cluster.replace(SERVICES, listed(*items), as_of)
    assert versions(cluster) == expected


def _state(history: list[tuple[str, int, bool]]) -> tuple[list[dict[str, Any]], int]:
    state: dict[str, int] = {}
    for name, version, exists in history:
        state.pop(name, None)
        if exists:
            state[name] = version
    return [service(version, name) for name, version in state.items()], history[-1][1] if history else 1
