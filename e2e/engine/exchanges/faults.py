"""Rows about what goes wrong between the legs: foreign parameters, leases, failed pulls, clients that leave.

Boundary: the engine lives on; what ends one is in `endings`.
"""

# ruff: noqa: PLR2004 - expected values are literals

from __future__ import annotations

import httpx

from e2e.engine.exchanges.parts import (
    COMPLETIONS,
    FIRST_LEG,
    MODEL,
    Pair,
    Target,
    exchange,
    ids,
    plain,
    wait_for,
)


@exchange
def poison(pair: Pair) -> None:
    """Decode does not check whose parameters it gets: the answer continues the other prompt, and stays in its cache."""
    mine, other = pair.prompt(64), pair.prompt(64)
    mine.append(other[-1])
    other.append(other[-1])
    theirs = ids(pair.prefill.ok(COMPLETIONS, plain(other)))
    own = ids(pair.prefill.ok(COMPLETIONS, plain(mine)))
    assert own != theirs
    wrong = pair.decode.ok(COMPLETIONS, plain(mine, kv_transfer_params=pair.first_leg(other)))
    assert ids(wrong) == theirs
    later = pair.decode.ok(COMPLETIONS, plain(mine))
    assert later["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert ids(later) == theirs


@exchange
def lease_runs_out(pair: Pair) -> None:
    """KV that nobody pulls is held until the lease ends, and then counted; a later pull is still answered."""
    prompt = pair.prompt(70)
    pair.quiet()
    before = pair.prefill.metrics()
    params = pair.first_leg(prompt)
    assert wait_for(lambda: pair.prefill.metrics()["kv_cache_usage_perc"] > 0, pair.lease_s)
    pair.quiet()
    assert pair.prefill.growth(before, "nixl_num_kv_expired_reqs_total") == [1]
    answer = pair.decode.ok(COMPLETIONS, plain(prompt, kv_transfer_params=params))
    assert ids(answer) == ids(pair.prefill.ok(COMPLETIONS, plain(prompt)))
    late = "nixl_num_notifications_after_expiry_total"
    assert pair.prefill.growth(before, late)[0] == 1


@exchange
def refusal_frees_at_once(pair: Pair) -> None:
    """A second leg that is refused tells prefill, which frees the blocks without waiting for the lease."""
    prompt = pair.prompt(70)
    pair.quiet()
    before = pair.prefill.metrics()
    params = pair.first_leg(prompt)
    refused = pair.decode.post(COMPLETIONS, plain(prompt, temperature=-3, kv_transfer_params=params))
    assert refused.status_code == httpx.codes.BAD_REQUEST
    pair.quiet()
    assert pair.prefill.growth(before, "nixl_num_kv_expired_reqs_total", within_s=0) == [0]


def unreachable(pair: Pair, prompt: list[int], target: Target) -> httpx.Response:
    """A second leg whose parameters name a port where nothing listens."""
    params = pair.first_leg(prompt) if target is pair.decode else None
    if params is None:
        params = pair.decode.ok(COMPLETIONS, plain(prompt, max_tokens=1, kv_transfer_params=FIRST_LEG))[
            "kv_transfer_params"
        ]
    # An engine that has been met before is not asked again: another id makes it a stranger.
    stranger = {"remote_port": 9, "remote_engine_id": f"gone-{pair.random.random()}"}
    return target.post(COMPLETIONS, plain(prompt, kv_transfer_params={**params, **stranger}))


@exchange
def failed_pull_fails(pair: Pair) -> None:
    """With policy `fail` a pull that cannot reach prefill gives 500 and is counted."""
    before = pair.decode.metrics()
    answer = unreachable(pair, pair.prompt(70), pair.decode)
    assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert pair.decode.growth(before, "nixl_num_failed_transfers_total")[0] == 1
    assert wait_for(lambda: pair.decode.metrics()["num_requests_running"] == 0, 15)


@exchange
def failed_pull_recomputes(pair: Pair) -> None:
    """With policy `recompute` the same gives 200 and the right answer; the failure is counted."""
    prompt = pair.prompt(70)
    before = pair.prefill.metrics()
    answer = unreachable(pair, prompt, pair.prefill)
    assert answer.status_code == httpx.codes.OK
    assert ids(answer.json()) == ids(pair.decode.ok(COMPLETIONS, plain(prompt)))
    assert pair.prefill.growth(before, "nixl_num_failed_transfers_total")[0] == 1


@exchange
def disconnect_aborts(pair: Pair) -> None:
    """A client that leaves ends its request in the engine within seconds; no finish reason is counted for it."""
    before = pair.decode.metrics()
    body = {"model": MODEL, **plain(pair.prompt(20), max_tokens=1900, stream=True)}
    with pair.decode.client.stream("POST", pair.decode.url + COMPLETIONS, json=body) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        assert wait_for(lambda: pair.decode.metrics()["num_requests_running"] == 1, 15)
    assert wait_for(lambda: pair.decode.metrics()["num_requests_running"] == 0, 15)
    aborted = 'request_success_total{finished_reason="abort"}'
    assert pair.decode.metrics()[aborted] == before[aborted]
