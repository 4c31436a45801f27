"""The stand-in's HTTP surface: vLLM's routes, each a short handler, behind the test's script.

Boundary: from recorded requests to replies. Generation for `/v1/responses` and `/v1/messages` is in `others`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from e2e.engine.standin import schema, tokens
from e2e.engine.standin.config import VERSION
from e2e.engine.standin.http import JSON_HEADERS, GoneError, Recorded, Reply
from e2e.engine.standin.others import Messages, Responses
from e2e.engine.standin.refusal import Body, RefusedError
from e2e.engine.standin.request import Asked, Origin, Reader
from e2e.engine.standin.sequence import EngineDeadError, GenerationError, Outcome
from e2e.engine.standin.shapes import DONE, Shape, encode, event, piece_text

if TYPE_CHECKING:
    from e2e.engine.standin.engine import Engine
    from e2e.engine.standin.script import Rule, Script

Handler = Callable[[Recorded, Reply], Awaitable[None]]
# After each event, whichever line ends it uses.
_EVENT_END = re.compile(rb"(?<=\n\n)(?=.)|(?<=\r\n\r\n)(?=.)", re.DOTALL)
TEXT_HEADERS = ((b"content-type", b"text/plain; charset=utf-8"),)
METRICS_HEADERS = ((b"content-type", b"text/plain; version=1.0.0; charset=utf-8"),)
PERMISSION = {
    "id": "modelperm-0000000000000000",
    "object": "model_permission",
    "allow_create_engine": False,
    "allow_sampling": True,
    "allow_logprobs": True,
    "allow_search_indices": False,
    "allow_view": True,
    "allow_fine_tuning": False,
    "organization": "*",
    "group": None,
    "is_blocking": False,
}


def failure(status: int, message: str, kind: str) -> Body:
    """An error in vLLM's shape."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def http_phrase(status: int) -> str:
    """The standard name of a status, without spaces, as error types are."""
    try:
        return HTTPStatus(status).phrase.replace(" ", "")
    except ValueError:
        return "Error"


def generation_failure(error: Exception) -> tuple[int, Body]:
    """Status and body for a request that the engine could not finish."""
    if isinstance(error, EngineDeadError):
        return 500, failure(500, str(error), "InternalServerError")
    return 500, failure(500, "Internal server error", "InternalServerError")


class Api:
    """Dispatches requests of one stand-in. `models_hidden` tells whether the model still "loads"."""

    def __init__(self, engine: Engine, script: Script, models_hidden: Callable[[], bool]) -> None:
        self.engine = engine
        self.script = script
        self.reader = Reader(engine.config, lambda: engine.adapters)
        self._models_hidden = models_hidden
        responses, messages = Responses(self), Messages(self)
        self._routes: dict[str, dict[str, Handler]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/load": {"GET": self._load},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/kv_event_sources": {"GET": self._event_sources},
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/responses": {"POST": responses.serve},
            "/v1/messages": {"POST": messages.serve},
            "/v1/messages/count_tokens": {"POST": messages.count},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/completions/render": {"POST": self._render},
            "/v1/chat/completions/render": {"POST": self._render},
        }
        if engine.config.lora_updating:
            self._routes["/v1/load_lora_adapter"] = {"POST": self._load_adapter}
            self._routes["/v1/unload_lora_adapter"] = {"POST": self._unload_adapter}

    async def __call__(self, recorded: Recorded, reply: Reply) -> None:
        """Answer one request."""
        rule = recorded.rule = reply.rule = self.script.take(recorded)
        if rule is not None and await self._faulted(rule, reply):
            return
        methods = self._routes.get(recorded.path)
        if methods is None:
            await reply.send(404, b'{"detail":"Not Found"}')
            return
        handler = methods.get(recorded.method)
        if handler is None:
            allowed = ", ".join(methods).encode()
            await reply.send(405, b'{"detail":"Method Not Allowed"}', ((b"allow", allowed), *JSON_HEADERS))
            return
        try:
            await handler(recorded, reply)
        except RefusedError as refused:
            await self._refuse(recorded, reply, refused)
        except (EngineDeadError, GenerationError) as error:
            status, body = generation_failure(error)
            await reply.send(status, encode(body))

    async def _refuse(self, recorded: Recorded, reply: Reply, refused: RefusedError) -> None:
        body = refused.body()
        if recorded.path.startswith("/v1/messages") and refused.kind == "NotFoundError":
            body = {"type": "error", "error": {"type": refused.kind, "message": str(refused)}}
        with contextlib.suppress(RefusedError):
            await self.engine.release_remote(_decoded(recorded).get("kv_transfer_params"))
        await reply.send(refused.status, encode(body))

    async def _faulted(self, rule: Rule, reply: Reply) -> bool:
        """What the rule wants before or instead of an answer; True when that was all."""
        if rule.delay_headers_s:
            await self.engine.clock.sleep(rule.delay_headers_s)
        if rule.never_answer:
            await asyncio.Event().wait()
        if rule.reset_after_bytes == 0:
            reply.reset()
        if rule.status is None and not rule.invalid_json:
            return False
        status = rule.status or 200
        default = failure(status, "scripted", http_phrase(status))
        body = encode(default) if rule.body is None else rule.body.encode()
        headers = tuple((name.lower().encode(), value.encode()) for name, value in rule.headers.items())
        if not any(name == b"content-type" for name, _ in headers):
            headers = (*JSON_HEADERS, *headers)
        if rule.invalid_json:
            body = b'{"id": "cmpl-broken", "choices": [{"te'
        if any(value.startswith(b"text/event-stream") for _, value in headers):
            await reply.start(headers, status)
            for piece in _EVENT_END.split(body):
                await reply.chunk(piece)
            await reply.end()
        else:
            await reply.send(status, body, headers)
        return True

    # Small routes
    async def _health(self, _: Recorded, reply: Reply) -> None:
        await reply.send(503 if self.engine.dead else 200, b"", ())

    async def _load(self, _: Recorded, reply: Reply) -> None:
        await reply.send(200, b'{"server_load":0}')

    async def _version(self, _: Recorded, reply: Reply) -> None:
        await reply.send(200, encode({"version": VERSION}))

    async def _metrics(self, _: Recorded, reply: Reply) -> None:
        await reply.send(200, self.engine.exposition(), METRICS_HEADERS)

    async def _event_sources(self, _: Recorded, reply: Reply) -> None:
        await reply.send(200, encode(self.engine.event_sources()))

    async def _models(self, _: Recorded, reply: Reply) -> None:
        config, now = self.engine.config, int(time.time())
        permission = [PERMISSION | {"created": now}]
        card = {"object": "model", "created": now, "owned_by": "vllm"}
        data = [
            {
                "id": name,
                **card,
                "root": config.model,
                "parent": None,
                "max_model_len": config.max_model_len,
                "permission": permission,
            }
            for name in config.served_names
        ]
        data += [
            {
                "id": name,
                **card,
                "root": path,
                "parent": config.served_names[0],
                "max_model_len": None,
                "permission": permission,
            }
            for name, (_number, path) in self.engine.adapters.items()
        ]
        await reply.send(200, encode({"object": "list", "data": [] if self._models_hidden() else data}))

    # Tokenizer
    async def _tokenize(self, recorded: Recorded, reply: Reply) -> None:
        body = self.body(recorded, schema.TOKENIZE_CHAT if b'"messages"' in recorded.body else schema.TOKENIZE)
        self.reader.model(body)
        text = self.reader.chat_text(body) if "messages" in body else body["prompt"]
        found = tokens.encoded(text)
        strings = [tokens.decoded(piece) for piece in tokens.pieces(found)] if body.get("return_token_strs") else None
        ids = tokens.token_ids(found)
        told = {
            "count": len(ids),
            "max_model_len": self.engine.config.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        await reply.send(200, encode(told))

    async def _detokenize(self, recorded: Recorded, reply: Reply) -> None:
        body = self.body(recorded, schema.DETOKENIZE)
        self.reader.model(body)
        await reply.send(200, encode({"prompt": tokens.decoded(self.reader.ids(body["tokens"]))}))

    async def _render(self, recorded: Recorded, reply: Reply) -> None:
        if not self.engine.config.scale_out:
            message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
            raise RefusedError(message, status=403, kind="PermissionDeniedError")
        if recorded.path.startswith("/v1/chat"):
            asked = self.reader.chat(self.body(recorded, schema.CHAT), Origin("render"), ("max_tokens",))
        else:
            asked = self.reader.completion(self.body(recorded, schema.COMPLETION), Origin("render"))
        ids = [tokens.token_ids(job.prompt) for job in asked.jobs[:: asked.choices]]
        await reply.send(200, encode([{"request_id": "render", "token_ids": one, "model": asked.model} for one in ids]))

    # Adapters
    async def _load_adapter(self, recorded: Recorded, reply: Reply) -> None:
        body = self.body(recorded, schema.LOAD_ADAPTER)
        name, path = body["lora_name"], body["lora_path"]
        if name in self.engine.adapters and not body.get("load_inplace"):
            message = (
                f"The lora adapter '{name}' has already been loaded. "
                "If you want to load the adapter in place, set 'load_inplace' to True."
            )
            raise RefusedError(message, kind="InvalidUserInput")
        if not await asyncio.to_thread(Path(path).is_dir):
            message = f"Loading lora {name} failed: No adapter found for {path}"
            raise RefusedError(message, status=404, kind="NotFoundError")
        self.engine.load_adapter(name, path)
        await reply.send(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), TEXT_HEADERS)

    async def _unload_adapter(self, recorded: Recorded, reply: Reply) -> None:
        name = self.body(recorded, schema.UNLOAD_ADAPTER)["lora_name"]
        if self.engine.adapters.pop(name, None) is None:
            raise RefusedError(f"The lora adapter '{name}' cannot be found.", status=404, kind="NotFoundError")
        await reply.send(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), TEXT_HEADERS)

    # Generation
    def body(self, recorded: Recorded, fields: schema.Schema) -> Body:
        """The request's JSON object, its values in their types.

        Raises:
            RefusedError: it is not one, is not declared as JSON, or does not fit.
        """
        kind = (recorded.header("content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json":
            message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
            raise RefusedError(message, kind="Bad Request")
        return fields.read(_decoded(recorded))

    def origin(self, recorded: Recorded, body: Body, prefix: str) -> Origin:
        """Whose request it is: the header's id wins over the body's.

        Raises:
            RefusedError: the rank that it names does not exist.
        """
        identity = f"{prefix}{recorded.header('x-request-id') or body.get('request_id') or uuid.uuid4().hex[:16]}"
        rank = self.engine.rank_of(recorded.header("x-data-parallel-rank"))
        return Origin(identity, rank, recorded.header("x-session-id"))

    async def _completions(self, recorded: Recorded, reply: Reply) -> None:
        body = self.body(recorded, schema.COMPLETION)
        origin = self.origin(recorded, body, "cmpl-")
        asked = self.reader.completion(body, origin)
        await self._generate(Shape("completion", origin.identity, *self._common(asked)), reply)

    async def _chat(self, recorded: Recorded, reply: Reply) -> None:
        body = self.body(recorded, schema.CHAT)
        origin = self.origin(recorded, body, "chatcmpl-")
        asked = self.reader.chat(body, origin, ("max_completion_tokens", "max_tokens"))
        if self.engine.draining:
            raise DrainingError
        await self._generate(Shape("chat", origin.identity, *self._common(asked)), reply)

    def _common(self, asked: Asked) -> tuple[int, Asked, str, bool]:
        config = self.engine.config
        return int(time.time()), asked, config.fingerprint, config.prompt_tokens_details

    async def _generate(self, shape: Shape, reply: Reply) -> None:
        if shape.asked.stream:
            await self._stream(shape, reply)
            return
        outcomes = await self.engine.complete_all(shape.asked.jobs, reply.rule)
        if reply.rule is not None and reply.rule.drop_kv_params:
            outcomes[0].transfer = None
        await reply.send(200, shape.whole(outcomes))

    async def _stream(self, shape: Shape, reply: Reply) -> None:
        rule, head, outcomes = reply.rule, shape.head(), [Outcome() for _ in shape.asked.jobs]
        await reply.start()
        try:
            for index, outcome in enumerate(outcomes):
                async for piece in self.events(shape, head, index, outcome, rule):
                    await reply.chunk(piece)
            if shape.asked.include_usage:
                await reply.chunk(shape.usage_event(head, outcomes))
        except (EngineDeadError, GenerationError) as error:
            await reply.chunk(event(generation_failure(error)[1]))
        if rule is None or not rule.omit_done:
            await reply.chunk(DONE)
        await reply.end()

    async def events(
        self, shape: Shape, head: bytes, index: int, outcome: Outcome, rule: Rule | None
    ) -> AsyncGenerator[bytes, None]:
        """The events of one choice."""
        first, sent = True, 0
        async with aclosing(self.engine.stream(shape.asked.jobs[index], outcome, rule)) as generation:
            async for piece in generation:
                if first and shape.kind == "chat":
                    yield shape.role_event(head, index)
                text = piece_text(piece)
                if outcome.text_length is not None:
                    text = text[: max(0, outcome.text_length - sent)]
                sent += len(text)
                yield shape.piece_event(head, index, piece, text, outcome, first=first)
                first = False
        if outcome.finish_reason == "abort" and outcome.answer:
            yield shape.piece_event(head, index, b"", "", outcome, first=first)


class DrainingError(GenerationError):
    """A chat request to an engine that shuts down: its renderer is closed already."""

    def __init__(self) -> None:
        super().__init__("cannot schedule new futures after shutdown")


def _decoded(recorded: Recorded) -> Body:
    try:
        body = msgspec.json.decode(recorded.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        location = "body.1"
        told = f"'msg': 'JSON decode error', 'ctx': {{'error': '{error}'}}"
        text = f"1 validation error:\n  {{'type': 'json_invalid', 'loc': '{location}', {told}}}"
        raise RefusedError(text, kind="Bad Request", param=location) from error
    if not isinstance(body, dict):
        text = (
            "1 validation error:\n  {'type': 'dict_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary'}"
        )
        raise RefusedError(text, kind="Bad Request", param="body")
    return body


__all__ = ["Api", "GoneError"]
