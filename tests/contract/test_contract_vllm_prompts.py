"""What a body says of its prompt, for every form that engines take."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.engines.vllm import prompts
from pdpool_api.engines.vllm.legs import Fields, Route
from pdpool_api.engines.vllm.prompts import prompt_text

ROLE = {"role": st.sampled_from(("user", "assistant", "tool"))}
TEXT = {"content": st.text()}
MESSAGE = st.fixed_dictionaries(ROLE | TEXT) | st.fixed_dictionaries(TEXT | ROLE)


def fields(**values: Any) -> Fields:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


@given(st.lists(MESSAGE, min_size=1, max_size=5), st.lists(MESSAGE, max_size=3))
def test_the_next_turn_begins_with_the_turn_before(turn: list[dict[str, str]], more: list[dict[str, str]]) -> None:
    """Whatever messages hold: text of the next turn starts with text of this one, and has the same opening."""
    for route, name in ((Route.CHAT, "messages"), (Route.MESSAGES, "messages"), (Route.RESPONSES, "input")):
        now, later = prompt_text(fields(**{name: turn}), route), prompt_text(fields(**{name: turn + more}), route)
        assert now is not None
        assert later is not None
        assert later.text.startswith(now.text)
        first = next((message for message in turn if message["role"] == "user"), None)
        if first is not None:
            assert now.text[: now.opening_bytes].endswith(msgspec.json.encode(first))
            assert later.text[: later.opening_bytes] == now.text[: now.opening_bytes]


@given(st.text(), st.text())
def test_a_longer_string_begins_with_the_shorter(text: str, more: str) -> None:
    """The same for a prompt that is one string, quotes and escapes included."""
    now = prompt_text(fields(prompt=text), Route.COMPLETIONS)
    later = prompt_text(fields(prompt=text + more), Route.COMPLETIONS)
    assert now is not None
    assert later is not None
    assert later.text.startswith(now.text)
    assert now.ids is None


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]], [], [[]]])
def test_token_ids_are_read(prompt: Any) -> None:
    """As one list, or as a list of one."""
    found = prompt_text(fields(prompt=prompt), Route.COMPLETIONS)
    assert found is not None
    assert found.ids == ([1, 2, 3] if prompt and prompt[0] else [])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": None},
        {"prompt": 7},
        {"prompt": {"a": 1}},
        {"prompt": [1.5]},
        {"prompt": [[1], [2]]},
        {"prompt": [None]},
        {"prompt": "x", "cache_salt": 7},
    ],
)
def test_what_only_an_engine_could_read_is_no_prompt(body: dict[str, Any]) -> None:
    """Nothing is guessed of it, and nothing fails."""
    assert prompt_text(fields(**body), Route.COMPLETIONS) is None


@pytest.mark.parametrize("raw", [b'[{"role":"user"', b"[" * 5000 + b"]" * 5000, b'[7,"x"]', b'["\xff"]', b"[", b'"'])
def test_hostile_messages_do_no_harm(raw: bytes) -> None:
    """Unfinished, nested, odd: a key of something, or none; never an exception."""
    for route, name in ((Route.CHAT, "messages"), (Route.COMPLETIONS, "prompt")):
        prompt_text({name: msgspec.Raw(raw)}, route)


def test_what_is_rendered_before_the_text_is_its_context() -> None:
    """Tools and templates make another prompt of the same messages; sampling does not; doors differ."""
    base = {"messages": [{"role": "user", "content": "x"}]}
    variants = [
        prompt_text(fields(**base, **extra), Route.CHAT)
        for extra in (
            {},
            {"tools": [1]},
            {"chat_template": "t"},
            {"chat_template_kwargs": {"a": 1}},
            {"documents": [2]},
        )
    ]
    contexts = {found.context for found in variants if found is not None}
    assert len(contexts) == len(variants)
    same = prompt_text(fields(**base, temperature=0.5, max_tokens=7, seed=3), Route.CHAT)
    assert same is not None
    assert variants[0] is not None
    assert same.context == variants[0].context
    assert prompt_text(fields(messages=[], cache_salt="s"), Route.CHAT) is not None


def test_bodies_beyond_any_context_are_not_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many messages, and of very many ids, no more is read than a context could hold."""
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "u"}
    found = prompt_text(fields(messages=[*[system] * 1000, user]), Route.CHAT)
    assert found is not None
    assert found.opening_bytes == 0
    monkeypatch.setattr(prompts, "_MOST_IDS_BYTES", 100)
    assert prompt_text(fields(prompt=list(range(10))), Route.COMPLETIONS) is not None
    assert prompt_text(fields(prompt=list(range(100))), Route.COMPLETIONS) is None
