"""The two legs' bodies as pure functions: what is kept, what is changed, for any client body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import Raw

from pdpool_api.engines.vllm import legs
from pdpool_api.engines.vllm.legs import Route

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KNOWN = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "stream",
        "stream_options",
        "n",
        "min_tokens",
        "logprobs",
        "top_logprobs",
        "logprob_token_ids",
        "temperature",
        "seed",
        "vllm_xargs",
        "kv_transfer_params",
        "ec_transfer_params",
    ]
)
CLIENT_BODIES = st.dictionaries(KNOWN | st.text(max_size=12), VALUES, max_size=10)
ROUTES = st.sampled_from(list(Route))
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_engine_id": "e"}
CHANGED = {"max_tokens", "max_completion_tokens", "max_output_tokens", "stream", "n", "kv_transfer_params"}
DROPPED = {"stream_options", "min_tokens", "logprobs", "top_logprobs", "logprob_token_ids"}
ROUTER_ONLY = {"kv_transfer_params", "ec_transfer_params"}


def clean(body: dict[str, Any]) -> dict[str, Any]:
    """The body without what only the router may say."""
    kept = {key: value for key, value in body.items() if key not in ROUTER_ONLY}
    if isinstance(kept.get("vllm_xargs"), dict):
        kept["vllm_xargs"] = {
            key: value for key, value in kept["vllm_xargs"].items() if key not in {*ROUTER_ONLY, "kv_cache_report_mode"}
        }
    return kept


@given(CLIENT_BODIES, ROUTES)
def test_decode_gets_the_clients_body_and_the_parameters(body: dict[str, Any], route: Route) -> None:
    """Decode's body is deep-equal to the client's, in its key order, plus exactly the parameters."""
    del route
    received = legs.received(json.dumps(body).encode())
    with_params = legs.decode_body(received, Raw(json.dumps(PARAMS).encode()))
    expected = {**clean(body), "kv_transfer_params": PARAMS}
    assert json.loads(with_params) == expected
    assert list(json.loads(with_params)) == list(expected)
    assert json.loads(legs.decode_body(received, None)) == clean(body)


@given(body=CLIENT_BODIES, route=ROUTES, want_token_ids=st.booleans())
def test_prefill_differs_in_named_fields_only(body: dict[str, Any], route: Route, *, want_token_ids: bool) -> None:
    """Prefill's body is the client's but for the fields that the contract names."""
    received = legs.received(json.dumps(body).encode())
    leg = json.loads(legs.prefill_body(received.fields, route, want_token_ids=want_token_ids))
    client = clean(body)
    for name in {"max_tokens", "max_completion_tokens", "max_output_tokens"} & (client.keys() | {route.output_limit}):
        assert leg[name] == 1
    assert leg["stream"] is False
    assert leg.get("n", 1) == 1
    assert ("n" in leg) == ("n" in client)
    assert not DROPPED & leg.keys()
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert leg["kv_transfer_params"]["do_remote_prefill"] is False
    allowed = CHANGED | ({"return_token_ids"} if want_token_ids else set())
    rest = {key: value for key, value in leg.items() if key not in allowed}
    assert rest == {key: value for key, value in client.items() if key not in allowed | DROPPED}
    assert list(rest) == [key for key in client if key in rest]


@given(CLIENT_BODIES)
def test_a_body_without_router_fields_is_not_copied(body: dict[str, Any]) -> None:
    """Without anything to take out, decode's bytes are the client's own."""
    assume(not ROUTER_ONLY & body.keys() and "vllm_xargs" not in body)
    text = json.dumps(body, indent=1).encode() + b"\n"
    assert legs.received(text).raw is text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"seed":1,"seed":2}', {"seed": 2}),
        ('{"stream":true,"kv_transfer_params":{"a":1},"stream":false,"kv_transfer_params":{"b":1}}', {"stream": False}),
        ('{"kv_transfer_p\\u0061rams":{"a":1},"x":1}', {"x": 1}),
        (
            '{"vllm_xargs":{"kv_transfer_params":1},"vllm_xargs":{"kv_transfer_params":1,"y":2}}',
            {"vllm_xargs": {"y": 2}},
        ),
        ("{}", {}),
        (" \n{ } \t", {}),
    ],
)
def test_the_last_of_equal_keys_counts_as_for_the_engine(text: str, expected: dict[str, Any]) -> None:
    """Duplicate and escaped keys are read as the engine's JSON reads them: the last counts."""
    received = legs.received(text.encode())
    assert json.loads(legs.decode_body(received, None)) == expected
    assert json.loads(legs.decode_body(received, Raw(b'{"p":1}'))) == {**expected, "kv_transfer_params": {"p": 1}}


def test_numbers_keep_every_digit() -> None:
    """Integers beyond 64 bits and floats in any spelling arrive as they were written."""
    text = b'{"seed":123456789012345678901234567890,"temperature":1.00000000000000000001,"x":1E400,"y":-0}'
    received = legs.received(text)
    assert text[1:-1] in legs.decode_body(received, Raw(b"{}"))
    assert b'"x":1E400' in legs.prefill_body(received.fields, Route.CHAT)


@pytest.mark.parametrize(
    "text",
    [b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1,"a":"\\ud800"}', '{"a":"é"}'.encode("utf-16"), b'\xef\xbb\xbf{"a":1}'],
)
def test_what_pythons_json_takes_is_taken(text: bytes) -> None:
    """Bodies that the engine's JSON reader takes and strict JSON refuses are accepted."""
    received = legs.received(text)
    assert set(received.fields) == {"a"}
    assert json.loads(legs.decode_body(received, Raw(b'{"p":1}')))["kv_transfer_params"] == {"p": 1}


def test_a_name_that_utf8_cannot_spell_is_kept() -> None:
    """Half of a surrogate pair in a field's name, which an engine's JSON reader takes, reaches both legs."""
    received = legs.received(b'{"\\ud800":1,"b":"\\udfff"}')
    for body in (legs.decode_body(received, Raw(b"{}")), legs.prefill_body(received.fields, Route.CHAT)):
        assert json.loads(body)["\ud800"] == 1
        assert json.loads(body)["b"] == "\udfff"


@pytest.mark.parametrize(
    "odd", ['"a":NaN', '"a":[-Infinity]', '"\\ud800":1', '"a":1'], ids=["nan", "infinity", "surrogate", "plain"]
)
def test_no_spelling_brings_parameters_through(odd: str) -> None:
    """What only an engine's JSON reader takes hides no router's field beside it."""
    xargs = f'{{{odd},"kv_transfer_params":{{"x":1}},"kv_cache_report_mode":"full","mine":1}}'
    received = legs.received(f'{{"vllm_xargs":{xargs},"b":1}}'.encode())
    for body in (legs.decode_body(received, None), legs.prefill_body(received.fields, Route.CHAT)):
        assert set(json.loads(body)["vllm_xargs"]) & {"kv_transfer_params", "kv_cache_report_mode"} == set()
        assert json.loads(body)["vllm_xargs"]["mine"] == 1


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"1", b"{", b'{"a":}', b'{"a":1}}', b'{"\xff":1}', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_no_engine_reads_is_refused(text: bytes) -> None:
    """Anything but one JSON object is an error that shows nothing of the body."""
    with pytest.raises(legs.BodyError) as refused:
        legs.received(text)
    assert len(str(refused.value)) < 60


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, None),
        ({"n": 1}, None),
        ({"n": None}, None),
        ({"n": 2}, "n"),
        ({"n": "2"}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"echo": False}, None),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_logprobs": None}, None),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt": "a"}, None),
        ({"prompt": ["a"]}, None),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2, 3]}, None),
        ({"prompt": [[1, 2, 3]]}, None),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": []}, None),
        ({"prompt": ["[", "a,b"]}, "prompt"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"truncate_prompt_tokens": 100}, None),
        ({"truncate_prompt_tokens": None}, None),
        ({"truncate_prompt_tokens": -1}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": "-1"}, "truncate_prompt_tokens"),
        ({"truncation": "disabled"}, None),
        ({"truncation": "auto"}, "truncation"),
        ({"truncation": None}, "truncation"),
    ],
)
def test_what_needs_one_engine_is_known(body: dict[str, Any], reason: str | None) -> None:
    """The field that keeps a request from two legs, however it is written."""
    for text in (json.dumps(body), json.dumps(body, indent=2), json.dumps(body, separators=(",", ":"))):
        assert legs.one_engine_reason(legs.received(text.encode()).fields) == reason


@pytest.mark.parametrize(
    ("answer", "params", "counts"),
    [
        (
            {"kv_transfer_params": PARAMS, "choices": [{"finish_reason": "length"}], "usage": {"prompt_tokens": 9}},
            PARAMS,
            (9, 0),
        ),
        ({"kv_transfer_params": None, "choices": [{"finish_reason": "stop"}]}, None, (0, 0)),
        ({"choices": [{"finish_reason": "length"}]}, None, (0, 0)),
        ({"kv_transfer_params": {}}, None, (0, 0)),
        (
            {
                "kv_transfer_params": PARAMS,
                "status": "incomplete",
                "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}},
            },
            PARAMS,
            (7, 3),
        ),
        (
            {
                "kv_transfer_params": PARAMS,
                "stop_reason": "max_tokens",
                "usage": {"input_tokens": 5, "cache_read_input_tokens": 4},
            },
            PARAMS,
            (5, 4),
        ),
    ],
)
def test_a_prefill_answer_hands_its_parameters_over(
    answer: dict[str, Any], params: dict[str, Any] | None, counts: tuple[int, int]
) -> None:
    """Parameters are taken verbatim, absent ones are legal, and token counts are read in every route's shape."""
    found = legs.handoff(json.dumps(answer).encode())
    assert (None if found.params is None else json.loads(bytes(found.params))) == params
    assert (found.prompt_tokens, found.cached_tokens) == counts


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"choices":5}',
        b'{"choices":[{"finish_reason":"abort"}],"kv_transfer_params":{"a":1}}',
        b'{"choices":[{"finish_reason":"error"}]}',
        b'{"status":"failed"}',
    ],
)
def test_a_prefill_answer_that_is_no_success_is_an_error(answer: bytes) -> None:
    """Malformed answers, `abort` and `error` are failures of prefill, whatever parameters they carry."""
    with pytest.raises(legs.HandoffError):
        legs.handoff(answer)


@pytest.mark.parametrize(
    ("told", "ids"),
    [
        ({"prompt_token_ids": [1, 2, 70000]}, [1, 2, 70000]),
        ({"choices": [{"prompt_token_ids": [5]}], "prompt_token_ids": None}, [5]),
        ({"choices": [{"finish_reason": "length"}]}, None),
        ({"prompt_token_ids": ["a"]}, None),
        ({"prompt_token_ids": "1,2"}, None),
        ({"prompt_token_ids": [1.5]}, None),
        ({"choices": [{"prompt_token_ids": {"0": 1}}]}, None),
    ],
)
def test_ids_of_a_prompt_are_read_where_they_are_wanted(told: dict[str, Any], ids: list[int] | None) -> None:
    """At the top or in the first choice; ids that cannot be read make no good answer a bad one."""
    answer = json.dumps({"kv_transfer_params": PARAMS, **told}).encode()
    found = legs.handoff(answer, wants_ids=True)
    assert found.ids == ids
    assert found.params is not None
    assert legs.handoff(answer).ids is None


@pytest.mark.parametrize("wants_ids", [False, True])
def test_an_engine_that_gave_up_is_understood_with_ids_too(wants_ids: bool) -> None:  # noqa: FBT001 - both readers
    """`abort` is a failure of prefill also beside ids that cannot be read."""
    for ids in ([1], ["a"]):
        answer = json.dumps({"choices": [{"finish_reason": "abort"}], "prompt_token_ids": ids}).encode()
        with pytest.raises(legs.HandoffError):
            legs.handoff(answer, wants_ids=wants_ids)


@given(st.text(max_size=200))
@example('"finish_reason":"abort"')
@example('\\"finish_reason\\":\\"error\\"')
def test_a_models_text_is_never_taken_for_the_engines_word(text: str) -> None:
    """Whatever a model writes inside a JSON string is not seen as a finish reason or as the end of a stream."""
    event = json.dumps({"choices": [{"text": text, "finish_reason": None}]}, ensure_ascii=False).encode()
    assert not any(legs.unfinished(event, route) for route in Route)
    wire = b"\ndata: " + event + b"\n\n"
    assert all(end.search(wire) is None for end in legs.STREAM_END.values())


@pytest.mark.parametrize("word", ["abort", "error"])
def test_a_stop_string_is_no_failure(word: str) -> None:
    """`stop_reason` repeats the client's stop string on OpenAI's routes, and tells a failure on `/v1/messages` only."""
    stopped = json.dumps({"choices": [{"finish_reason": "stop", "stop_reason": word}]}).encode()
    assert not legs.unfinished(stopped, Route.CHAT)
    assert not legs.unfinished(stopped, Route.COMPLETIONS)
    assert legs.unfinished(json.dumps({"choices": [{"finish_reason": word}]}).encode(), Route.CHAT)
    assert legs.unfinished(json.dumps({"stop_reason": word}).encode(), Route.MESSAGES)


def test_usage_of_a_stream_is_read_from_its_last_event() -> None:
    """The last usage object of a piece of a stream counts, nested details included."""
    wire = (
        b'data: {"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
        b'data: {"usage":{"prompt_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
    )
    assert legs.streamed_usage(wire) == legs.Usage(4, 2, 3)
    assert legs.streamed_usage(b'data: {"usage":null}\n\n') is None
