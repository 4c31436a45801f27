"""Comparison of a desired object with what managedFields says is owned, without an API server."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api import names
from pdpool_operator import ownership

names_ = st.text("abcdef", min_size=1, max_size=3)
scalars = st.one_of(st.integers(0, 9), st.booleans(), st.text("xyz", max_size=2))
atomic_lists = st.lists(st.integers(0, 9), max_size=3)
keyed_lists = st.lists(names_, max_size=3, unique=True).map(lambda keys: [{"name": key, "v": 1} for key in keys])
objects = st.dictionaries(
    names_,
    st.recursive(
        st.one_of(scalars, atomic_lists, keyed_lists),
        lambda inner: st.dictionaries(names_, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def owned_fields(value: Any) -> Any:
    """What the API server writes down for an apply of `value`: lists of named items by key, other lists whole."""
    if isinstance(value, dict):
        return {f"f:{key}": owned_fields(each) for key, each in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        return {f"k:{json.dumps({'name': each['name']})}": {".": {}, **owned_fields(each)} for each in value}
    return {}


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every member of every mapping, those inside of named list items included."""
    if isinstance(value, dict):
        inner = [found for key, each in value.items() for found in paths(each, (*path, key))]
        return [*[(*path, key) for key in value], *inner]
    if isinstance(value, list):
        return [found for at, each in enumerate(value) for found in paths(each, (*path, at))]
    return []


@given(objects)
def test_what_was_applied_whole_needs_nothing(body: dict[str, Any]) -> None:
    """Fields owned exactly as desired are no difference, whatever their shape."""
    assert ownership.mismatch(owned_fields(body), body) == ""


@given(objects, st.data())
def test_any_field_that_is_not_owned_any_more_is_found(body: dict[str, Any], data: st.DataObject) -> None:
    """Whichever single member is taken out of what is owned, the difference is seen."""
    members = [path for path in paths(body) if path[-1] != "name"]
    if not members:
        return
    gone = data.draw(st.sampled_from(members))
    rest = copy.deepcopy(body)
    holder = rest
    for step in gone[:-1]:
        holder = holder[step]
    del holder[gone[-1]]
    # The whole node of a mapping that is left empty would say that it is owned as one value.
    if not holder:
        return
    assert ownership.mismatch(owned_fields(rest), body).startswith("unowned ")
    assert ownership.mismatch(owned_fields(body), rest).startswith("remove ")


@pytest.mark.parametrize(
    ("owned", "desired", "expected"),
    [
        ({"f:ports": {'k:{"port":53,"protocol":"TCP"}': {".": {}}}}, {"ports": [{"port": 53}]}, "unowned"),
        ({"f:ports": {'k:{"port":53,"protocol":"UDP"}': {"f:port": {}}}}, {"ports": [{"port": 53}]}, "remove"),
        ({"f:set": {'v:"a"': {}}}, {"set": ["a"]}, ""),
        ({"f:set": {'v:"a"': {}}}, {"set": ["a", "b"]}, "unowned"),
        ({"f:set": {'v:"a"': {}, 'v:"b"': {}}}, {"set": ["a"]}, "remove"),
        ({"f:selector": {}}, {"selector": {"a": "b"}}, ""),
        ({"f:command": {}}, {"command": []}, ""),
        ({"f:a": {"f:b": {}}}, {"a": 1}, "remove"),
        ({".": {}}, {"a": 1}, "unowned"),
    ],
)
def test_list_items_are_matched_by_their_keys(owned: Any, desired: Any, expected: str) -> None:
    """Items of lists match by their keys, protocol TCP being the default; sets by value; atomic nodes not at all."""
    assert ownership.mismatch(owned, desired).partition(" ")[0] == expected


@given(objects)
def test_a_hash_is_of_the_content_not_of_the_order_of_keys(body: dict[str, Any]) -> None:
    """Equal mappings have equal hashes, and stamping changes nothing but the one annotation."""
    backwards = dict(reversed(list(body.items())))
    assert ownership.digest(body) == ownership.digest(backwards)
    stamped = ownership.stamped({"metadata": {"name": "x"}, "spec": body})
    assert stamped["spec"] == body
    assert list(stamped["metadata"]["annotations"]) == [names.ANNOTATION_APPLIED]


def test_the_order_of_a_list_counts() -> None:
    """A list in another order is another object: the order of variables and arguments has a meaning."""
    assert ownership.digest({"env": [1, 2]}) != ownership.digest({"env": [2, 1]})


def test_null_members_are_left_out_everywhere() -> None:
    """A null that is applied would be owned and never met, so none is sent."""
    assert ownership.without_none({"a": None, "b": [{"c": None, "d": 0}], "e": ""}) == {"b": [{"d": 0}], "e": ""}


def test_only_our_own_apply_counts() -> None:
    """Entries of other managers, of updates, and of subresources are not what we applied."""
    fields: dict[str, Any] = {"f:spec": {}}
    entries = [
        {"manager": "other", "operation": "Apply", "fieldsV1": {}},
        {"manager": "pdpool", "operation": "Update", "fieldsV1": {}},
        {"manager": "pdpool", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:status": {}}},
        {"manager": "pdpool", "operation": "Apply", "fieldsV1": fields},
    ]
    live = {"metadata": {"managedFields": entries}}
    assert ownership.entry(live) == fields
    assert ownership.entry(live, "status") == {"f:status": {}}
    assert ownership.entry({"metadata": {"managedFields": entries[:3]}}) is None


ITEM = '{"name":"a"}'
OTHER = '{"name":"b"}'


@pytest.mark.parametrize(
    ("ours", "theirs", "taken"),
    [
        ({}, {"f:list": {f"k:{OTHER}": {".": {}}}}, True),
        ({"f:list": {f"k:{ITEM}": {".": {}}}}, {"f:list": {f"k:{OTHER}": {".": {}}}}, False),
        ({}, {"f:list": {f"k:{ITEM}": {"f:v": {}}}}, False),
        ({}, {"f:mine": {f"k:{OTHER}": {".": {}}}, "f:scalar": {}}, False),
    ],
)
def test_only_what_stands_in_the_place_of_ours_is_taken_over(ours: Any, theirs: Any, *, taken: bool) -> None:
    """A foreign item counts where one of ours is missing; beside ours, and elsewhere, it stays whose it is."""
    entries = [
        {"manager": "other", "operation": "Update", "fieldsV1": {"f:spec": theirs}},
        {"manager": "other", "operation": "Update", "subresource": "status", "fieldsV1": {"f:spec": theirs}},
        {"manager": "pdpool", "operation": "Apply", "fieldsV1": {"f:spec": {"f:scalar": {}, **ours}}},
    ]
    live = {"metadata": {"managedFields": entries}}
    before = copy.deepcopy(live)
    desired = {"metadata": {}, "spec": {"scalar": 1, "list": [{"name": "a", "v": 1}]}}
    found = ownership.taken_over(desired, live)
    assert live == before
    if not taken:
        assert found is None
        return
    assert found is not None
    assert found[0] == entries[1]
    assert ownership.entry({"metadata": {"managedFields": found}}) == {"f:spec": {"f:scalar": {}, **theirs}}


def test_nothing_is_taken_over_where_we_own_nothing() -> None:
    """Without an entry of ours there is none to add to: the next apply makes one."""
    entries = [{"manager": "other", "operation": "Update", "fieldsV1": {"f:spec": {"f:list": {f"k:{OTHER}": {}}}}}]
    assert (
        ownership.taken_over(
            {"metadata": {}, "spec": {"list": [{"name": "a"}]}}, {"metadata": {"managedFields": entries}}
        )
        is None
    )


def _patched(target: Any, patch: Any) -> Any:
    """RFC 7396, as it stands there."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _patched(found.get(name), value)
    return found


@given(objects, objects)
def test_a_merge_patch_makes_one_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Applied by the rules of RFC 7396, nothing of the one is left and nothing of the other lacks."""
    assert _patched(before, ownership.merge_patch(before, after)) == after
