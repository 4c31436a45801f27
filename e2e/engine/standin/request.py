"""From a request's body to jobs for the engine, refusing what vLLM refuses, with its status and words.

Boundary: pure; no engine state but the names it serves.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from e2e.engine.standin import tokens
from e2e.engine.standin.refusal import Body, RefusedError, parameter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from e2e.engine.standin.config import EngineConfig

_MOST_CHOICES = 16_384
_USUAL_TOKENS = 16
"""Of a completion without a limit."""


@dataclass(slots=True)
class Job:
    """One sequence to generate: a prompt and everything that shapes its answer."""

    request_id: str
    prompt: bytes
    most_tokens: int
    least_tokens: int = 0
    ignore_eos: bool = False
    stop: Sequence[str] = ()
    salt: int = 0
    transfer: Body | None = None
    adapter: tuple[int, str] | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    bypass_cache: bool = False
    full_report: bool = False
    rank: int | None = None

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return tokens.count(self.prompt)


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose request it is: the answer's id, the rank and the session that it names."""

    identity: str
    rank: int | None = None
    session: str | None = None


@dataclass(slots=True)
class Asked:
    """A generation request: its jobs (prompt by prompt, choice by choice) and how the answer should look."""

    jobs: list[Job]
    model: str
    choices: int = 1  # per prompt
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    echo: bool = False
    logprobs: bool = False
    prompt_logprobs: bool = False
    beam: bool = False
    body: Body = field(default_factory=dict)


def limit(body: Body, names: Sequence[str], prompt_tokens: int, config: EngineConfig) -> int:
    """How many tokens may be generated; the first of `names` that is present wins.

    Raises:
        RefusedError: below 1, or above what the context leaves.
    """
    asked = next((value for name in names if (value := body.get(name)) is not None), None)
    if asked is not None and asked < 1:
        raise parameter(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
    if asked is not None and asked > config.max_model_len:
        raise parameter(
            f"max_tokens={asked} cannot be greater than max_model_len={config.max_model_len}. "
            "Please request fewer output tokens.",
            "max_tokens",
            asked,
        )
    if prompt_tokens > config.max_model_len - 1:
        raise parameter(
            f"This model's maximum context length is {config.max_model_len} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    left = config.max_model_len - prompt_tokens
    if asked is not None and asked > left:
        raise parameter(
            f"This model's maximum context length is {config.max_model_len} tokens. However, you requested {asked} "
            f"output tokens and your prompt contains {prompt_tokens} input tokens. "
            "Please reduce the length of the input prompt or the output tokens.",
            "input_tokens",
            prompt_tokens,
        )
    return left if asked is None else asked


def _check_common(body: Body) -> None:
    temperature = body.get("temperature")
    if temperature is not None and temperature < 0:
        raise parameter(
            f"temperature must be non-negative, got {float(temperature)}.", "temperature", float(temperature)
        )
    choices = body.get("n")
    if choices is not None and choices < 1:
        raise RefusedError(f"n must be at least 1, got {choices}.")
    if choices is not None and choices > _MOST_CHOICES:
        raise RefusedError(f"n must be at most {_MOST_CHOICES}, got {choices}.")
    if choices is not None and choices > 1 and temperature == 0 and not body.get("use_beam_search"):
        raise RefusedError(f"n must be 1 when using greedy sampling, got {choices}.")


def _seed(body: Body, choice: int) -> int:
    """Zero for greedy requests: then the answer is a function of the prompt alone."""
    if body.get("temperature") == 0 and choice == 0:
        return 0
    seed = body.get("seed")
    if seed is None and choice == 0:
        return 0
    return zlib.crc32(f"{seed} {choice}".encode())


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all jobs of a request share beside its body."""

    transfer: Body | None
    adapter: tuple[int, str] | None
    bypass: bool


def _jobs(asked: Asked, origin: Origin, prompt: bytes, most: int, plan: _Plan) -> list[Job]:
    body = asked.body
    least = body.get("min_tokens") or 0
    if least > most:
        raise RefusedError(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")
    return [
        Job(
            request_id=origin.identity if asked.choices == 1 else f"{choice}_{origin.identity}",
            prompt=prompt,
            most_tokens=most,
            least_tokens=least,
            ignore_eos=bool(body.get("ignore_eos")),
            stop=_stops(body),
            salt=_seed(body, choice),
            # Each child has parameters of its own; beam search does without.
            transfer=dict(plan.transfer) if plan.transfer and not asked.beam else None,
            adapter=plan.adapter,
            cache_salt=body.get("cache_salt"),
            session_id=body.get("session_id") or origin.session,
            bypass_cache=plan.bypass,
            full_report=(body.get("vllm_xargs") or {}).get("kv_cache_report_mode") == "full",
            rank=origin.rank,
        )
        for choice in range(asked.choices)
    ]


def _stops(body: Body) -> list[str]:
    stop = body.get("stop")
    return [stop] if isinstance(stop, str) else list(stop or [])


class Reader:
    """Turns bodies that fit their `schema` into jobs for one engine.

    `adapters` tells the LoRA adapters that are loaded now, by name.
    """

    def __init__(self, config: EngineConfig, adapters: Callable[[], Mapping[str, tuple[int, str]]]) -> None:
        self._config = config
        self._adapters = adapters

    def model(self, body: Body) -> tuple[str, tuple[int, str] | None]:
        """The name that the answer shows and the adapter, if the name is one.

        Raises:
            RefusedError: 404 for a name that is not served.
        """
        name = body.get("model")
        if not name:
            return self._config.served_names[0], None
        if name in self._config.served_names:
            return self._config.served_names[0], None
        adapter = self._adapters().get(name)
        if adapter is None:
            valid = ", ".join(self._config.served_names)
            message = f"The model `{name}` does not exist. Valid aliases: {valid}."
            raise RefusedError(message, status=404, kind="NotFoundError", param="model")
        return str(name), (adapter[0], str(name))

    def completion(self, body: Body, origin: Origin) -> Asked:
        """A `/v1/completions` request."""
        _check_common(body)
        shown, adapter = self.model(body)
        asked = self._asked(body, shown)
        asked.echo = bool(body.get("echo"))
        asked.logprobs = body.get("logprobs") is not None
        if body.get("logprob_token_ids") and not asked.logprobs:
            raise parameter("when using `logprob_token_ids`, `logprobs` must be set.", "logprob_token_ids")
        bypass = asked.prompt_logprobs or (asked.echo and asked.logprobs)
        plan = _Plan(body.get("kv_transfer_params"), adapter, bypass=bypass)
        limits = body if body.get("max_tokens") is not None else {"max_tokens": _USUAL_TOKENS}
        for index, prompt in enumerate(self._prompts(body)):
            most = limit(limits, ("max_tokens",), tokens.count(prompt), self._config)
            asked.jobs += _jobs(asked, replace(origin, identity=f"{origin.identity}-{index}"), prompt, most, plan)
        return asked

    def chat(self, body: Body, origin: Origin, limits: Sequence[str]) -> Asked:
        """A chat request, or one brought into this form; the first of `limits` that is present wins."""
        _check_common(body)
        shown, adapter = self.model(body)
        if not body["messages"]:
            raise RefusedError("Cannot apply chat template to an empty conversation. Provide at least one message.")
        asked = self._asked(body, shown)
        asked.echo = bool(body.get("echo"))
        asked.logprobs = bool(body.get("logprobs"))
        if body.get("logprob_token_ids") and not asked.logprobs:
            raise parameter("when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids")
        given = None if asked.echo else self._given_ids(body.get("kv_transfer_params"))
        prompt = given if given is not None else tokens.encoded(self.chat_text(body))
        most = limit(body, limits, tokens.count(prompt), self._config)
        plan = _Plan(body.get("kv_transfer_params"), adapter, bypass=asked.prompt_logprobs or asked.echo)
        asked.jobs = _jobs(asked, origin, prompt, most, plan)
        return asked

    def chat_text(self, body: Body) -> str:
        """The rendered conversation."""
        messages = [
            (str(message.get("role", "user")), content_text(message.get("content"))) for message in body["messages"]
        ]
        return tokens.rendered(messages, add_generation_prompt=bool(body.get("add_generation_prompt", True)))

    def _asked(self, body: Body, shown: str) -> Asked:
        options = body.get("stream_options") or {}
        return Asked(
            jobs=[],
            model=shown,
            choices=body.get("n") or 1,
            stream=bool(body.get("stream")),
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("continuous_usage_stats")),
            return_token_ids=bool(body.get("return_token_ids")),
            prompt_logprobs=body.get("prompt_logprobs") is not None,
            beam=bool(body.get("use_beam_search")),
            body=body,
        )

    def ids(self, given: Sequence[int]) -> bytes:
        """Tokens of ids from a body.

        Raises:
            RefusedError: an id outside the vocabulary.
        """
        try:
            return tokens.from_ids(given)
        except OverflowError as error:
            raise RefusedError(f"Token id {max(given)} is out of vocabulary") from error

    def _given_ids(self, transfer: Body | None) -> bytes | None:
        name = "prompt_token_ids"
        if transfer is None or name not in transfer:
            return None
        given = transfer[name]
        whole = isinstance(given, list) and bool(given) and all(type(item) is int and item >= 0 for item in given)
        if not whole:
            message = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers."
            raise parameter(message, f"kv_transfer_params.{name}")
        return self.ids(given)

    def _prompts(self, body: Body) -> list[bytes]:
        prompt = body.get("prompt")
        if prompt is None or prompt == "":
            raise parameter("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        if isinstance(prompt, str):
            return [tokens.encoded(prompt)]
        if not prompt:
            raise RefusedError("You must pass at least one prompt")
        if isinstance(prompt[0], int):
            return [self.ids(prompt)]
        return [tokens.encoded(item) if isinstance(item, str) else self.ids(item) for item in prompt]


def content_text(content: Any) -> str:
    """The text of a message's content: a string, or parts of which those without text are shown as they are."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in content)
