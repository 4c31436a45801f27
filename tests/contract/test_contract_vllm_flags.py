"""Flags of vLLM in every spelling that its parser takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.engines.vllm import flags
from pdpool_api.engines.vllm.flags import ArgumentError

OF_SHORT = {long: short for short, long in flags.SHORT.items()}


@st.composite
def spelled(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    """A known flag, a value, and one of the ways to write both."""
    flag = draw(st.sampled_from(sorted(flags.KNOWN)))
    value = draw(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8))
    written = flag
    if flag in OF_SHORT and draw(st.booleans()):
        written = OF_SHORT[flag]
        if len(written) == 2 and draw(st.booleans()):
            return flag, value, [f"{written}{value}"]
    else:
        length = draw(st.integers(4, len(flag)))
        if [each for each in flags.KNOWN if each.startswith(flag[:length])] == [flag]:
            written = flag[:length]
        dashes = draw(st.lists(st.sampled_from("-_"), min_size=len(written), max_size=len(written)))
        head, tail = written[:2], written[2:]
        written = head + "".join(dash if char == "-" else char for char, dash in zip(tail, dashes, strict=False))
    return flag, value, draw(st.sampled_from([[f"{written}={value}"], [written, value]]))


@given(spelled())
def test_every_spelling_is_the_same_flag(case: tuple[str, str, list[str]]) -> None:
    """Dash or underscore, `=` or the next argument, short, glued to it, abbreviated: one flag and one value."""
    flag, value, items = case
    (found,) = flags.given(items, "args")
    assert (found.flag, found.value, found.items) == (flag, value, tuple(items))


@given(st.lists(spelled(), max_size=6))
def test_flags_are_found_in_order_among_others(cases: list[tuple[str, str, list[str]]]) -> None:
    """Nothing is lost or invented in a longer list."""
    items = [item for _, _, each in cases for item in each]
    assert [(found.flag, found.value) for found in flags.given(items, "args")] == [
        (flag, value) for flag, value, _ in cases
    ]


@given(st.lists(st.text(max_size=12), max_size=20))
def test_any_text_can_be_read(items: list[str]) -> None:
    """Hostile arguments give flags or none, never an error; what a flag takes up stands where it says."""
    for found in flags.given(items, "args"):
        place = int(found.field.removeprefix("args[").removesuffix("]"))
        assert items[place : place + len(found.items)] == list(found.items)


@pytest.mark.parametrize(
    ("written", "flag", "negated"),
    [
        ("--no-enable-prompt-tokens-details", "--enable-prompt-tokens-details", True),
        ("--no_enable_prompt_tokens_details", "--enable-prompt-tokens-details", True),
        ("--no-enable-prompt", "--enable-prompt-tokens-details", True),
        ("--no-such-flag", "--no-such-flag", False),
        ("--kv-transfer", "--kv-transfer-config", False),
        ("--kv", "--kv", False),
        ("--data-parallel-size-local", "--data-parallel-size-local", False),
        ("-tp", "--tensor-parallel-size", False),
        ("-t", "--tensor-parallel-size", False),
        ("-d", "-d", False),
    ],
)
def test_names(written: str, flag: str, negated: bool) -> None:  # noqa: FBT001 - a table's column
    """The `--no-` form is the switch itself; an ambiguous or longer name is another flag."""
    assert flags.canonical(written) == (flag, negated)


@pytest.mark.parametrize("item", ["8000", "-1", "-0.5", "-", "--", "value", "", "--port 8000"])
def test_values_are_no_flags(item: str) -> None:
    """What argparse takes for a value, a negative number or one quoted word with a blank included."""
    assert not flags.is_flag(item)


def test_a_negative_number_is_a_value() -> None:
    """`--max-model-len -1` gives -1."""
    (found,) = flags.given(["--max-model-len", "-1"], "args")
    assert found.value == "-1"


def test_a_switch_takes_no_following_flag() -> None:
    """The next flag is no value."""
    first, second = flags.given(["--enforce-eager", "--dtype=half"], "args")
    assert (first.value, second.field) == (None, "args[1]")


def test_json_is_merged_whole_and_dotted() -> None:
    """A JSON value and dotted entries of one flag add up, the later over the earlier."""
    items = [
        '--kv-transfer-config={"kv_role":"kv_both","kv_connector_extra_config":{"a":1}}',
        "--kv_transfer_config.kv_connector_extra_config.b",
        "2",
        "--kv-transfer-config.kv_connector_extra_config.backends+",
        "UCX,LIBFABRIC",
        "--kv-transfer-config.kv_role=kv_producer",
    ]
    assert flags.json_value(list(flags.given(items, "args")), flags.KV_TRANSFER) == {
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"a": 1, "b": 2, "backends": ["UCX", "LIBFABRIC"]},
    }


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["--kv-transfer-config", "{"], r"args\[0\]: --kv-transfer-config must be a JSON object"),
        (
            ["--dtype=half", "--kv-transfer-config=[1]"],
            r"args\[1\]: --kv-transfer-config must be a JSON object, not \[1\]",
        ),
        (["--kv-transfer-config"], r"args\[0\]: --kv-transfer-config needs a value"),
    ],
)
def test_broken_json_names_its_place(items: list[str], message: str) -> None:
    """The author sees which argument is wrong, and why."""
    with pytest.raises(ArgumentError, match=message):
        flags.json_value(list(flags.given(items, "args")), flags.KV_TRANSFER)
