"""Names of children and labels: valid, stable, and distinct for distinct pools."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api import names
from pdpool_api.names import Role

SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

POOLS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,15}[a-z0-9])?){0,2}", fullmatch=True)
LONG = st.from_regex(r"[a-z0-9][-a-z0-9.]{60}[a-z0-9]", fullmatch=True)


@given(
    st.one_of(POOLS, LONG),
    st.sampled_from([("prefill",), ("router",), ("decode", "6d8f9c01"), ("aggregated", "0123456789")]),
)
def test_a_childs_name_is_a_valid_service_name(pool: str, parts: tuple[str, ...]) -> None:
    """Dots, leading digits and any length give a DNS-1035 label that ends in the child's own parts."""
    name = names.child_name(pool, *parts)
    assert len(name) <= 63
    assert SERVICE.fullmatch(name)
    assert name.endswith("-" + "-".join(parts))


@given(st.lists(st.one_of(POOLS, LONG), min_size=2, max_size=30, unique=True))
def test_distinct_pools_have_distinct_children(pools: list[str]) -> None:
    """Near-equal names stay apart."""
    assert len({names.child_name(pool, "router") for pool in pools}) == len(pools)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a.b", "a-b"), ("1a", "p1a"), ("x" * 62 + "a", "x" * 62 + "b"), ("a." + "b" * 55 + ".c", "a." + "b" * 55 + ".d")],
)
def test_names_that_are_rewritten_alike_stay_apart(one: str, other: str) -> None:
    """What rewriting or cutting makes equal, the hash keeps apart."""
    assert names.child_name(one, "prefill") != names.child_name(other, "prefill")


def test_an_ordinary_name_is_kept() -> None:
    """Names that people type appear as they typed them."""
    assert names.child_name("llama-70b", "router") == "llama-70b-router"


def test_a_name_never_changes() -> None:
    """A changed name would make a second child beside the first; these are fixed."""
    assert names.child_name("1.llama", "decode") == "p1-llama-48e5ede4-decode"
    assert names.child_name("x" * 63, "prefill", "6d8f9c01") == "x" * 37 + "-75220b47-prefill-6d8f9c01"


@given(st.one_of(POOLS, LONG))
def test_labels_are_valid_and_select_one_role(pool: str) -> None:
    """Every label value is valid, and roles of one pool never share a selector."""
    for role in Role:
        assert all(LABEL.fullmatch(value) and len(value) <= 63 for value in names.child_labels(pool, role).values())
        assert names.selector_labels(pool, role).items() <= names.child_labels(pool, role).items()
    assert len({tuple(names.selector_labels(pool, role).values()) for role in Role}) == len(Role)
