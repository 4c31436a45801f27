"""What is kept of a look before never shows: a plan with it is the plan without it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.names import Role
from pdpool_operator import intent
from pdpool_operator.reconcile import next_plan
from pdpool_operator.records import HTTP_ROUTES, Images, Observed, PoolRef
from pdpool_operator.sizes import Sizing

ROUTE = {"router": {"httpRoute": {"parentRefs": [{"name": "gateway"}]}}}
SPECS: tuple[dict[str, Any], ...] = (
    {},
    ROUTE,
    {"mode": "Aggregated", "decode": {"replicas": 2}},
    {"mode": "Auto", "prefill": {}, "decode": {}},
    {"prefill": {"args": ["--port=1"]}},
    {"decode": {"args": ["--dtype=float16"]}},
    {"decode": {"args": ["--kv-transfer-config=["]}},
    {"decode": {"autoscaling": {"maxReplicas": 5}}},
    {"prefill": {"replicas": "many"}},
)
STATUSES: tuple[dict[str, Any], ...] = ({}, {"mode": "Disaggregated", "modeInputs": "x"}, {"observedGeneration": 1})
IMAGES = (Images(engine="vllm/vllm-openai:v0.33.0", router="r:1"), Images(engine="e:2", router="r:2"))
SIZES = (
    {},
    {Role.DECODE: Sizing(1, 1, "A", "one")},
    {Role.DECODE: Sizing(3, 1, "B", "x")},
    {Role.DECODE: Sizing(3, 1, "B", "y")},
)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(SPECS),
            st.sampled_from(STATUSES),
            st.sampled_from(IMAGES),
            st.sampled_from([frozenset(), frozenset({HTTP_ROUTES})]),
            st.sampled_from(SIZES),
            st.sampled_from(["one", "two"]),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_a_plan_is_the_same_whatever_was_looked_at_before(looks: list[tuple[Any, ...]]) -> None:
    """Specs, statuses, images, optional kinds, sizes and lives may change in any order, rests between them."""
    recall = intent.Recall()
    for spec, status, images, optional, sizes, uid, rests in looks:
        if rests:
            recall.rest()
        whole = {"model": {"id": "m"}, **({} if spec.get("mode") == "Aggregated" else {"prefill": {}}), "decode": {}}
        metadata = {"name": "p", "namespace": "n", "uid": uid, "generation": 1}
        raw = {"metadata": metadata, "spec": {**whole, **spec}, "status": status}
        observed = Observed(PoolRef("n", "p"), raw, {}, optional=optional)

        def told(_spec: Any, sizes: Any = sizes) -> Any:
            return sizes

        fresh = next_plan(observed, images, "ns", told)
        assert next_plan(observed, images, "ns", told, recall=recall) == fresh
