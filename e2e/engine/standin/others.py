"""`/v1/responses` and `/v1/messages` of the stand-in: the same generation in two further shapes.

Boundary: bodies are brought into chat form and go through the same reader and engine; tools, files and stored
responses are left out.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from e2e.engine.standin import schema, tokens
from e2e.engine.standin.sequence import EngineDeadError, GenerationError, Outcome
from e2e.engine.standin.shapes import answer_text, encode, piece_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from e2e.engine.standin.api import Api
    from e2e.engine.standin.http import Recorded, Reply
    from e2e.engine.standin.refusal import Body
    from e2e.engine.standin.request import Asked


def typed_event(value: Body) -> bytes:
    """An event with its type as the event's name."""
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), encode(value))


class _Typed:
    """What both have in common: run the one job and send the events of `_events`."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def _answer(self, reply: Reply, asked: Asked, identity: str) -> None:
        if not asked.stream:
            outcome = (await self.api.engine.complete_all(asked.jobs, reply.rule))[0]
            if reply.rule is not None and reply.rule.drop_kv_params:
                outcome.transfer = None
            await reply.send(200, encode(self._whole(asked, identity, outcome)))
            return
        outcome = Outcome()
        await reply.start()
        try:
            async for piece in self._events(asked, identity, outcome, reply):
                await reply.chunk(typed_event(piece))
        except (EngineDeadError, GenerationError):
            await reply.chunk(
                typed_event({"type": "error", "error": {"type": "internal_error", "message": "Internal server error"}})
            )
        await reply.end()

    def _whole(self, asked: Asked, identity: str, outcome: Outcome) -> Body:
        raise NotImplementedError

    def _events(self, asked: Asked, identity: str, outcome: Outcome, reply: Reply) -> AsyncGenerator[Body, None]:
        raise NotImplementedError

    async def _texts(self, asked: Asked, outcome: Outcome, reply: Reply) -> AsyncGenerator[str, None]:
        async with aclosing(self.api.engine.stream(asked.jobs[0], outcome, reply.rule)) as generation:
            async for piece in generation:
                yield piece_text(piece)


class Messages(_Typed):
    """The Anthropic-style API."""

    def _chat_body(self, body: Body) -> Body:
        system = body.get("system")
        leading = [{"role": "system", "content": system}] if system else []
        return body | {"messages": leading + body["messages"]}

    async def serve(self, recorded: Recorded, reply: Reply) -> None:
        """`POST /v1/messages`."""
        body = self.api.body(recorded, schema.MESSAGES)
        origin = self.api.origin(recorded, body, "chatcmpl-")
        asked = self.api.reader.chat(self._chat_body(body), origin, ("max_tokens",))
        await self._answer(reply, asked, origin.identity)

    async def count(self, recorded: Recorded, reply: Reply) -> None:
        """`POST /v1/messages/count_tokens`."""
        body = self.api.body(recorded, schema.COUNT_TOKENS)
        self.api.reader.model(body)
        count = tokens.count(tokens.encoded(self.api.reader.chat_text(self._chat_body(body))))
        await reply.send(200, encode({"input_tokens": count, "context_management": {"original_input_tokens": count}}))

    def _usage(self, asked: Asked, outcome: Outcome) -> Body:
        usage = {
            "input_tokens": asked.jobs[0].prompt_tokens - outcome.cached_tokens,
            "output_tokens": len(outcome.answer),
        }
        return usage | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": outcome.cached_tokens}

    def _reason(self, outcome: Outcome) -> str:
        return {"length": "max_tokens", "stop": "end_turn"}.get(
            outcome.finish_reason or "", outcome.finish_reason or "end_turn"
        )

    def _whole(self, asked: Asked, identity: str, outcome: Outcome) -> Body:
        return {
            "id": identity,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": answer_text(outcome)}],
            "model": asked.model,
            "stop_reason": self._reason(outcome),
            "usage": self._usage(asked, outcome),
            **({"kv_transfer_params": outcome.transfer} if outcome.transfer else {}),
        }

    def _begun(self, asked: Asked, identity: str) -> Body:
        message = {"id": identity, "type": "message", "role": "assistant", "content": [], "model": asked.model}
        usage = {"input_tokens": asked.jobs[0].prompt_tokens, "output_tokens": 0}
        return message | {"stop_reason": None, "stop_sequence": None, "usage": usage}

    async def _events(self, asked: Asked, identity: str, outcome: Outcome, reply: Reply) -> AsyncGenerator[Body, None]:
        started = False
        async with aclosing(self._texts(asked, outcome, reply)) as texts:
            async for text in texts:
                if not started:
                    started = True
                    yield {"type": "message_start", "message": self._begun(asked, identity)}
                    yield {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
                yield {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}, "index": 0}
        yield {"type": "content_block_stop", "index": 0}
        delta = {"stop_reason": self._reason(outcome), "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": self._usage(asked, outcome)}
        yield {"type": "message_stop"}


class Responses(_Typed):
    """OpenAI's responses API, stateless use."""

    async def serve(self, recorded: Recorded, reply: Reply) -> None:
        """`POST /v1/responses`."""
        body = self.api.body(recorded, schema.RESPONSES)
        given = body["input"]
        instructions = body.get("instructions")
        messages: list[Any] = [{"role": "system", "content": instructions}] if instructions else []
        messages += [{"role": "user", "content": given}] if isinstance(given, str) else given
        origin = self.api.origin(recorded, body, "resp_")
        asked = self.api.reader.chat(body | {"messages": messages}, origin, ("max_output_tokens",))
        await self._answer(reply, asked, origin.identity)

    def _item(self, identity: str, text: str | None, status: str) -> Body:
        content = [] if text is None else [self._part(text)]
        identity = identity.replace("resp_", "msg_")
        return {
            "id": identity,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }

    def _part(self, text: str) -> Body:
        return {"annotations": [], "text": text, "type": "output_text", "logprobs": None}

    def _response(self, asked: Asked, identity: str, outcome: Outcome | None, output: list[Body]) -> Body:
        cut = outcome is not None and outcome.finish_reason == "length"
        return {
            "id": identity,
            "created_at": int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": asked.body.get("instructions"),
            "metadata": None,
            "model": asked.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": asked.body.get("temperature", 1.0),
            "tool_choice": asked.body.get("tool_choice", "auto"),
            "tools": asked.body.get("tools", []),
            "top_p": asked.body.get("top_p", 1.0),
            "background": False,
            "max_output_tokens": asked.jobs[0].most_tokens,
            "status": "in_progress" if outcome is None else "incomplete" if cut else "completed",
            "usage": None if outcome is None else self._usage(asked, outcome),
            "kv_transfer_params": outcome.transfer if outcome is not None else None,
        }

    def _usage(self, asked: Asked, outcome: Outcome) -> Body:
        given, made = asked.jobs[0].prompt_tokens, len(outcome.answer)
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": outcome.cached_tokens},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        }

    def _whole(self, asked: Asked, identity: str, outcome: Outcome) -> Body:
        return self._response(asked, identity, outcome, [self._item(identity, answer_text(outcome), "completed")])

    async def _events(self, asked: Asked, identity: str, outcome: Outcome, reply: Reply) -> AsyncGenerator[Body, None]:
        number = 0

        def numbered(kind: str, **fields: Any) -> Body:
            nonlocal number
            number += 1
            return {**fields, "sequence_number": number - 1, "type": f"response.{kind}"}

        place = {"item_id": identity.replace("resp_", "msg_"), "output_index": 0, "content_index": 0}
        begun = self._response(asked, identity, None, [])
        yield numbered("created", response=begun)
        yield numbered("in_progress", response=begun)
        started = False
        async with aclosing(self._texts(asked, outcome, reply)) as texts:
            async for text in texts:
                if not started:
                    started = True
                    yield numbered("output_item.added", item=self._item(identity, None, "in_progress"), output_index=0)
                    yield numbered("content_part.added", part=self._part(""), **place)
                yield numbered("output_text.delta", delta=text, logprobs=[], **place)
        text = answer_text(outcome)
        yield numbered("output_text.done", text=text, logprobs=[], **place)
        yield numbered("content_part.done", part=self._part(text), **place)
        item = self._item(identity, text, "completed")
        yield numbered("output_item.done", item=item, output_index=0)
        yield numbered("completed", response=self._response(asked, identity, outcome, [item]))
