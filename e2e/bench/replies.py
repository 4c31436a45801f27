"""What the benchmark's engines answer, as a function of the request's serial, so that a client can check every byte.

Boundary: texts only. They have the shape and size of vLLM's answers, because what a router pays depends on both.
"""

from __future__ import annotations

from functools import lru_cache

MODEL = "m"
BLOCK_TOKENS = 16
BYTES_PER_TOKEN = 4
BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN
"""Bytes of prompt that fill a KV block of that many tokens."""
TOKENS = 150_000
"""Tokens that the model knows."""
STREAM_END = b"data: [DONE]\n\n"

_COMPLETION = (
    b'{"id":"chatcmpl-%b","object":"chat.completion","created":1760000000,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":" %b","refusal":null,"annotations":null,"audio":null,"function_call":null,'
    b'"tool_calls":[],"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}],'
    b'"service_tier":null,"system_fingerprint":null,"usage":{"prompt_tokens":256,"total_tokens":257,'
    b'"completion_tokens":1,"prompt_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":%b,'
    b'"kv_transfer_params":%b}'
)
_EVENT = (
    b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1760000000,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" %b.%d"},"logprobs":null,"finish_reason":%b,"token_ids":null}]}\n\n'
)
_HANDOFF = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[%b]],"remote_engine_id":"7f1c-prefill",'
    b'"remote_request_id":"%b","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,"pp_size":1,'
    b'"remote_num_tokens":%d,"remote_blocks_expiry_time":1760000030.5,"remote_registration_generation":0,'
    b'"transfer_mode":"pull","remote_prefill_cached_tokens":0}'
)


def completion(serial: str) -> bytes:
    """The body of an answer of one token that is not streamed."""
    return _COMPLETION % (serial.encode(), serial.encode(), b"null", b"null")


def is_known(serial: str) -> bool:
    """Whether the prompt of that request is the one that half of all requests have; the others are nobody else's."""
    return int(serial) % 2 == 0


def token_ids(serial: str, body_bytes: int) -> list[int]:
    """The ids of a prompt of that many bytes: equal for equal prompts, and else different from the first one on."""
    first = 0 if is_known(serial) else int(serial) % TOKENS
    return [first, *_ids(body_bytes // BYTES_PER_TOKEN)]


@lru_cache(maxsize=16)
def _ids(count: int) -> list[int]:
    return [1 + number * 7919 % (TOKENS - 1) for number in range(count)]


@lru_cache(maxsize=16)
def _ids_text(count: int) -> bytes:
    return b"".join(b",%d" % one for one in _ids(count))


def prefill(serial: str, handoff: str, body_bytes: int, *, ids: bool = False) -> bytes:
    """The body of a prefill answer; its list of blocks is as long as a prompt of that many bytes makes it.

    `ids`: it tells the ids of the prompt's tokens.
    """
    blocks = max(1, body_bytes // BLOCK_BYTES)
    block_ids = ",".join(map(str, range(1, blocks + 1)))
    params = _HANDOFF % (block_ids.encode(), handoff.encode(), blocks * BLOCK_TOKENS)
    told = b"null"
    if ids:
        told = b"[%d%b]" % (token_ids(serial, 0)[0], _ids_text(body_bytes // BYTES_PER_TOKEN))
    return _COMPLETION % (serial.encode(), serial.encode(), told, params)


def stream_event(serial: str, index: int, count: int) -> bytes:
    """One server-sent event: token `index` of `count`."""
    finish = b'"length"' if index == count - 1 else b"null"
    return _EVENT % (serial.encode(), serial.encode(), index, finish)


def stream(serial: str, count: int) -> bytes:
    """The whole body of a streamed answer of `count` tokens."""
    return b"".join(stream_event(serial, index, count) for index in range(count)) + STREAM_END
