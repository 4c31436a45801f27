"""Run by `make bench-index`. What knowing prefixes costs: events, look-ups, memory, choices, and a router at rest.

Boundary: the pure rooms are measured in this process by its own CPU clock, a router at rest by the scheduler's
account of its process. Figures are of this machine and interpreter, which are printed with them; each is the best of
some rounds, since whatever else runs only adds.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from e2e.bench.cpu import tree_ns
from e2e.bench.processes import running_anywhere, wait_for
from e2e.ports import free_ports
from pdpool_api.engines.vllm import kv_events
from pdpool_api.engines.vllm.legs import Route
from pdpool_api.engines.vllm.prompts import prompt_text
from pdpool_api.names import Role
from pdpool_router.kv.blocks import TokenChain, packed
from pdpool_router.kv.events import apply
from pdpool_router.kv.knowledge import Prefixes, prompt_of
from pdpool_router.records import Decision, Endpoint, LocalPrefill, Request, Snapshot
from pdpool_router.schedule.policies import POLICIES
from pdpool_router.state.loads import Loads
from pdpool_sim import asked
from pdpool_sim.figure import Figure, write_json

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_TOKENS = 16
PROMPT_BYTES = 16_384
BYTES_PER_TOKEN = 4
HOLDERS = 16
REST_S = 20.0
AT_REST = 1000
_KEYS_A_STORE = 1000


def best_s(work: Callable[[], object], times: int, rounds: int = 7) -> float:
    """CPU seconds of one call, in the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(times):
            work()
        best = min(best, (time.process_time() - start) / times)
    return best


def events(blocks_a_batch: int, batches: int) -> Figure:
    """Blocks a second, half of them stored and half removed, from the bytes of a message to the index."""
    rng = random.Random(1)  # noqa: S311 - measured, not kept secret
    known = Prefixes(10_000_000)
    holder = known.told("e", 0)
    messages: list[tuple[int, bytes]] = []
    live: list[int] = []
    for _ in range(batches):
        names = [rng.getrandbits(64) for _ in range(blocks_a_batch)]
        gone = [live.pop(rng.randrange(len(live))) for _ in names] if len(live) > 40 * blocks_a_batch else []
        live += names
        stored = {
            "type": "BlockStored",
            "block_hashes": names,
            "parent_block_hash": None,
            "token_ids": [rng.randrange(150_000) for _ in range(blocks_a_batch * BLOCK_TOKENS)],
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [["a salt"], *[None] * (blocks_a_batch - 1)],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        removed = [{"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU", "group_idx": 0} for one in gone]
        messages.append((len(names) + len(gone), msgspec.msgpack.encode([1.0, [*removed, stored], 0])))
    start = time.process_time()
    for _, message in messages:
        apply(known, holder, kv_events.batch(message))
    took_s = time.process_time() - start
    count = sum(each for each, _ in messages)
    return Figure(f"block events, {blocks_a_batch} a message", count / took_s / 1e6, "M/s", 0.3, at_least=True)


def lookup() -> list[Figure]:
    """A prompt of 16 kB, of which one of 16 endpoints has all and the others half: keys, and who holds how much."""
    rng = random.Random(2)  # noqa: S311 - measured, not kept secret
    text = "".join(rng.choices("abcdefghijklmnop ", k=PROMPT_BYTES))
    fields = {"prompt": msgspec.Raw(msgspec.json.encode(text))}
    ids = packed([rng.randrange(150_000) for _ in range(PROMPT_BYTES // BYTES_PER_TOKEN)])
    assert ids is not None
    chain = TokenChain(ids)
    known = Prefixes(10_000_000)
    for number in range(HOLDERS):
        holder = known.told(f"e{number}", 0)
        known.sees_block_size(holder, BLOCK_TOKENS)
        keys = chain.keys(BLOCK_TOKENS)[: None if not number else len(chain.keys(BLOCK_TOKENS)) // 2]
        known.blocks.store(holder, keys, keys)

    def keyed() -> object:
        found = prompt_text(fields, Route.COMPLETIONS)
        assert found is not None
        return prompt_of(found, "")

    prompt = keyed()
    known.learn(prompt, chain)  # type: ignore[arg-type]
    return [
        Figure("keys of a 16 kB prompt", 1e6 * best_s(keyed, 300), "us", 40),
        Figure("look-up of a 16 kB prompt", 1e6 * best_s(lambda: known.match(prompt), 300), "us", 40),  # type: ignore[arg-type]
    ]


def memory(blocks: int) -> Figure:
    """Resident bytes for each block of an endpoint, every block another."""
    before = _resident_bytes()
    known = Prefixes(2 * blocks)
    names = iter(range(1, 2**60, 2**60 // (2 * blocks)))
    for number in range(HOLDERS):
        holder = known.told(f"e{number}", 0)
        for _ in range(blocks // HOLDERS // _KEYS_A_STORE):
            keys = [next(names) for _ in range(_KEYS_A_STORE)]
            known.blocks.store(holder, [key ^ 0xABCDEF for key in keys], keys)
    used = _resident_bytes() - before
    name = f"bytes per endpoint and block, {known.blocks.size / 1e6:g} M blocks"
    return Figure(name, used / known.blocks.size, "B", 150)


def decide(count: int, goal_us: float) -> Figure:
    """One choice of a prefill endpoint among so many, a quarter of which hold some of the prompt."""
    endpoints = [Endpoint(uid=f"p{n}", name=f"p{n}", role=Role.PREFILL, host="h", port=1) for n in range(count)]
    decode = Endpoint(uid="d", name="d", role=Role.DECODE, host="h", port=1)
    loads = Loads()
    loads.keep([*endpoints, decode])
    rng = random.Random(3)  # noqa: S311 - measured, not kept secret
    for one in endpoints:
        for _ in range(rng.randrange(3)):
            loads.begin(one, rng.randrange(2000))
    known = Prefixes(10_000_000)
    ids = packed([rng.randrange(150_000) for _ in range(4096)])
    assert ids is not None
    chain = TokenChain(ids)
    keys = chain.keys(BLOCK_TOKENS)
    for one in endpoints[:: max(4, count // 16)]:
        holder = known.told(one.uid, 0)
        known.sees_block_size(holder, BLOCK_TOKENS)
        held = keys[: rng.randrange(len(keys))]
        known.blocks.store(holder, held, held)
    text = prompt_text({"prompt": msgspec.Raw(msgspec.json.encode("x" * 512))}, Route.COMPLETIONS)
    assert text is not None
    prompt = msgspec.structs.replace(prompt_of(text, ""), ids=chain)
    found = known.match(prompt)

    class _Found:
        version = 0

        def match(self, _: object) -> object:
            return found

    snapshot = Snapshot(
        prefill=tuple(endpoints),
        decode=(decode,),
        aggregated=(),
        inflight={},
        local_prefills={},
        max_local_prefills=4,
        local_allowed=True,
        one_revision=True,
        loads=loads.loads,
        knowledge=_Found(),
        local_prefill=LocalPrefill(),
    )
    policy, request = POLICIES["KvAware"](), Request("m", 10, prompt=prompt)

    def one_choice() -> object:
        return policy.plan(request, snapshot, 0.0, rng)

    assert isinstance(one_choice(), Decision)
    took = best_s(one_choice, max(3, 20_000 // count))
    return Figure(f"choice among {count}", 1e6 * took, "us", goal_us)


def at_rest(seconds: float) -> Figure:
    """Share of a core that a router takes for 1,000 endpoints and no request (one engine answers for them all)."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        engine, api, admin = free_ports(3)
        static = [
            {
                "role": "prefill" if number % 2 else "decode",
                "url": f"http://127.0.0.1:{engine}",
                "uid": f"e{number}",
                "kvEvents": f"tcp://127.0.0.1:{engine + 1}",
            }
            for number in range(AT_REST)
        ]
        file = where / "router.json"
        file.write_text(json.dumps({"model": {"servedNames": ["m"]}, "endpoints": {"static": static}}))
        engines = [sys.executable, "-m", "e2e.engine.standin", "serve", "tiny", "--port", str(engine)]
        events_at = json.dumps(
            {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{engine + 1}"}
        )
        router = [str(Path(sys.executable).with_name("pdpool-router")), "--config", str(file), "--host", "127.0.0.1"]
        router += ["--port", str(api), "--admin-port", str(admin), "--log-level", "error"]
        with (
            running_anywhere([*engines, "--kv-events-config", events_at], log=where / "engine.log") as first,
        ):
            wait_for(first, where / "engine.log", 60, f"http://127.0.0.1:{engine}/health")
            with running_anywhere(router, log=where / "router.log") as child:
                wait_for(child, where / "router.log", 60, f"http://127.0.0.1:{api}/health")
                time.sleep(seconds / 2)
                start, begun = tree_ns(child.pid), time.monotonic()
                time.sleep(seconds)
                share = (tree_ns(child.pid) - start) / 1e9 / (time.monotonic() - begun)
    return Figure(f"router at rest, {AT_REST} endpoints", 100 * share, "% of a core", 5)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> int:
    """Measures all (environment: QUICK=1, JSON=file)."""
    quick = asked.quick()
    figures = [
        memory(1_000_000 if quick else 10_000_000),
        *(events(size, 400 if quick else 3000) for size in (1, 8, 32)),
        *lookup(),
        decide(16, 30),
        decide(1000, 300),
        at_rest(REST_S / 2 if quick else REST_S),
    ]
    print(f"Python {sys.version.split()[0]}, load average {os.getloadavg()[0]:.1f}")
    for one in figures:
        print(f"{one.name:48} {one.value:10.2f} {one.unit:12} {one.bound:10} {one.verdict}")
    write_json(figures, asked.file("JSON"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
