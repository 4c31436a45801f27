"""Dynamo's frontend as a peer: what is installed, how it is started, and its own engines beside it.

Boundary: versions, command lines and settings; starting and asking are `contest`'s and `load`'s business. Its frontend
speaks to its own engines only, in a protocol of its own, so it runs before its mockers: engines without a model that
answer with tokens by chance. A mocker has one pace, so each pace that is asked for is a model of its own, with two
prefill and two decode engines as all routers have.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from e2e.bench.replies import BLOCK_TOKENS, MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from e2e.bench.peers import Place

VERSION: Final = "1.6.1"
# Its own requirements name a package that cannot be installed, and much that a frontend before mockers never imports.
INSTALLS: Final = (
    ("--no-deps", f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}"),
    ("msgspec==0.23.0", "pydantic==2.13.5", "pyyaml==6.0.4", "tokenizers==0.23.3", "uvloop==0.23.0"),
)
MODEL_MAKER: Final = Path(__file__).parent / "dynamo_model.py"

MODELS: Final = {0: MODEL, 5: "a", 20: "b", 125: "c"}
"""By milliseconds between two tokens; names of one length, so that bodies are as long as everybody's."""
ENGINES_A_ROLE: Final = 2
_STEP_MS: Final = 5.74
"""What a decode step of a mocker takes by its own model while hardly any of its KV is in use."""
_AT_ONCE: Final = 1_000_000
_BLOCKS: Final = 1_000_000
"""So many that hardly any of them are in use."""
_MOST_REQUESTS: Final = 8192
_MOST_TOKENS: Final = 10_000_000
_PLANES: Final = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


def _folder(place: Place) -> Path:
    return place.folder / "dynamo"


def arguments(place: Place) -> list[str]:
    """Of the frontend. What an earlier run has registered is forgotten."""
    shutil.rmtree(_folder(place), ignore_errors=True)
    (_folder(place) / "kv").mkdir(parents=True)
    return [
        *("-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(place.port)),
        # Of the tokenizers that it has, one that costs a third of the default one for a long prompt.
        *("--router-mode", "round-robin", "--tokenizer", "fastokens", *_PLANES),
    ]


def engines(model: Path) -> dict[str, list[str]]:
    """Arguments of the mockers, by the name of each; `model`: the folder that `dynamo_model` has written."""
    found = {}
    for pace_ms, name in MODELS.items():
        common = [
            *("-m", "dynamo.mocker", "--model-path", str(model), "--model-name", name, *_PLANES),
            *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(_BLOCKS)),
            *("--max-num-seqs", str(_MOST_REQUESTS), "--max-num-batched-tokens", str(_MOST_TOKENS)),
            *("--kv-bytes-per-token", "1000", "--kv-transfer-bandwidth", "0", "--num-workers", str(ENGINES_A_ROLE)),
        ]
        speed = _STEP_MS / pace_ms if pace_ms else _AT_ONCE
        # Without bootstrap ports the legs come one after the other, as with all routers here. With them its engines
        # meet over connections of their own, which takes them 40 ms more.
        found[f"prefill-{name}"] = [
            *(*common, "--disaggregation-mode", "prefill", "--endpoint", f"dyn://{name}.prefill.generate"),
            *("--speedup-ratio", str(_AT_ONCE)),
        ]
        found[f"decode-{name}"] = [
            *(*common, "--disaggregation-mode", "decode", "--endpoint", f"dyn://{name}.backend.generate"),
            *("--speedup-ratio", f"{speed:.4f}"),
        ]
    return found


def variables(place: Place) -> dict[str, str]:
    """The environment of frontend and mockers: all on loopback, nothing asked of a model hub, files in one folder."""
    loopback = ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")
    return {
        "HOME": str(_folder(place)),
        "DYN_FILE_KV": str(_folder(place) / "kv"),
        "DYN_LOG": "warn",
        "HF_HUB_OFFLINE": "1",
        **dict.fromkeys(loopback, "127.0.0.1"),
    }


class _Instance(msgspec.Struct):
    endpoint: str


class _Health(msgspec.Struct):
    instances: list[_Instance] = []


class _Card(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Card]


def _has_engines(page: bytes) -> bool:
    health = msgspec.json.decode(page, type=_Health)
    return sum(one.endpoint == "generate" for one in health.instances) == 2 * ENGINES_A_ROLE * len(MODELS)


def _has_models(page: bytes) -> bool:
    return {one.id for one in msgspec.json.decode(page, type=_Models).data} == set(MODELS.values())


PAGES: Final[Mapping[str, Callable[[bytes], bool]]] = {"/health": _has_engines, "/v1/models": _has_models}
"""What it tells once every engine is there: it answers 200 without any."""
