"""What the demo and the scenarios are made of, without a cluster."""

from __future__ import annotations

import functools
import io
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import yaml
from rich.console import Console

from e2e.cluster import DEFAULT_NODE_NAME
from e2e.demo import account, options, talk
from e2e.demo.view import View
from e2e.engine import install
from e2e.scenarios import engine_metrics, host_links, legs, pools, product, standin_pool, traffic
from e2e.scenarios.startup import EngineStart, StartupWatch
from pdpool_api.pool import InferencePool

STARTED_AT = "2026-01-01T00:00:00+00:00"
METRICS = """\
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf"} 2.0
vllm:nixl_bytes_transferred_sum{engine="0"} 131072.0
vllm:nixl_bytes_transferred_count{engine="0"} 2.0
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 3.0
vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 4.0
vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} 40.0
"""


def _pod(**status: object) -> dict[str, object]:
    return {"metadata": {"name": "p", "labels": {"pdpool.io/role": "decode"}}, "status": status}


def test_the_sample_is_a_valid_pool() -> None:
    """The committed sample has no unknown field and mounts only the places that the demo links."""
    sample = yaml.safe_load(options.SAMPLE.read_text())
    pool = InferencePool.parse(sample, strict=True)
    paths = {volume["hostPath"]["path"] for volume in pool.spec.decode.template.volumes}
    assert paths == {"/usr", *(str(host_links.ROOT / name) for name in host_links.NAMES)}


def test_a_standin_pool_is_a_valid_pool() -> None:
    """The manifest of stand-in engines has no unknown field and carries replicas and settings."""
    raw = standin_pool.manifest("p", "n", prefill=2, decode=3, settings={"pace": {"step_s": 0.1}})
    pool = InferencePool.parse(raw, strict=True)
    assert (pool.spec.prefill.replicas, pool.spec.decode.replicas) == (2, 3)
    settings = {each["name"]: each.get("value") for each in pool.spec.engine.env}[standin_pool.SETTINGS_VARIABLE]
    assert '"step_s": 0.1' in str(settings)


def test_metrics_are_summed_over_labels_that_are_not_asked_for() -> None:
    """A sum takes every series with the labels asked for, and growth is the difference of two readings."""
    before, after = engine_metrics.parsed(""), engine_metrics.parsed(METRICS)
    assert after.total(engine_metrics.PROMPT_TOKENS, source="local_compute") == 7
    assert after.grown(before, engine_metrics.PULLED_BYTES) == 131072
    assert after.total("vllm:absent") == 0
    assert not after.has("vllm:absent")


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (32, 1), (33, 2), (600, 19)])
def test_a_pull_is_whole_blocks(tokens: int, blocks: int) -> None:
    """The partial last block of a prompt is pulled too."""
    assert legs.pulled_bytes(tokens) == blocks * 32 * 2 * 2 * 2 * 64 * 4


def test_links_are_made_again_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of an earlier environment are replaced, and removing them removes their folder."""
    root = tmp_path / "root"
    for target in (tmp_path / "old", tmp_path / "new"):
        target.mkdir()
        monkeypatch.setattr(host_links, "targets", lambda target=target: dict.fromkeys(host_links.NAMES, target))
        host_links.make(root)
    assert {link.resolve().name for link in root.iterdir()} == {"new"}
    host_links.remove(root)
    assert not root.exists()
    assert (tmp_path / "new").is_dir()


def test_something_else_in_the_place_of_a_link_is_left_alone(tmp_path: Path) -> None:
    """A folder of somebody else where a link belongs is an error, and stays."""
    (tmp_path / "python").mkdir()
    if not install.is_installed():
        pytest.skip("the engine's environment is not installed")
    with pytest.raises(FileExistsError, match="python"):
        host_links.make(tmp_path)
    host_links.remove(tmp_path)
    assert (tmp_path / "python").is_dir()


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (_pod(), "Pending"),
        (_pod(containerStatuses=[{"state": {"waiting": {"reason": "ErrImageNeverPull"}}}]), "ErrImageNeverPull"),
        (_pod(containerStatuses=[{"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]), "starting"),
        (_pod(conditions=[{"type": "Ready", "status": "True"}]), "ready"),
        ({**_pod(), "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "leaving"),
    ],
    ids=["pending", "waiting", "starting", "ready", "leaving"],
)
def test_a_pod_is_told_in_one_word(pod: dict[str, object], state: str) -> None:
    """A pod's state is the word a person would look for."""
    assert pools.view(pod).state == state


def test_waiting_ends_with_what_was_seen() -> None:
    """Waiting in vain raises an error that names what was waited for and what was seen instead."""
    with pytest.raises(pools.LateError, match=r"the moon: not within 0 s; seen: clouds"):
        pools.wait_for(lambda: False, 0.0, "the moon", lambda: "clouds")


def test_overhead_leaves_out_the_slower_engines_own_start() -> None:
    """Of two engines the one that answered last counts, from its container's start to its first answer."""
    view = pools.view(_pod())
    watch = StartupWatch(pools.Pool(None, "p"))  # type: ignore[arg-type]
    watch.starts = {
        "a": EngineStart(view, container_started_s=101.0, first_answer_s=130.0),
        "b": EngineStart(view, container_started_s=102.0, first_answer_s=150.0),
    }
    assert watch.overhead_s(applied_s=100.0, first_token_s=152.5) == pytest.approx(4.5)
    watch.starts["added"] = EngineStart(view, container_started_s=None, first_answer_s=400.0)
    assert watch.overhead_s(applied_s=100.0, first_token_s=152.5) == pytest.approx(4.5)
    watch.starts["b"] = EngineStart(view, container_started_s=None, first_answer_s=150.0)
    assert watch.overhead_s(applied_s=100.0, first_token_s=152.5) is None


def test_the_start_of_an_engine_is_known_also_once_it_ends() -> None:
    """A container that has ended tells no start any more; what was seen of it stays."""
    runs = {"containerStatuses": [{"name": "engine", "ready": True, "state": {"running": {"startedAt": STARTED_AT}}}]}
    watch = StartupWatch(pools.Pool(None, "p"))  # type: ignore[arg-type]
    with httpx.Client() as client:
        for status in (runs, {}):
            watch._look(client, pools.view(_pod(**status)))
    (start,) = watch.engines()
    assert start.container_started_s == datetime.fromisoformat(STARTED_AT).timestamp()


def test_a_run_without_a_terminal_prints_plain_lines() -> None:
    """Every step is a line at its start and one at its end, with its time, also when it fails."""
    out = io.StringIO()
    with View(["one", "two"], Console(file=out, width=200)) as view:
        with view.step("one") as step:
            view.say(step, "half-way")
        with pytest.raises(ValueError, match="broken"), view.step("two"):
            raise ValueError("broken")
    lines = [line.partition("] ")[2] for line in out.getvalue().splitlines()]
    assert lines[:2] == ["one …", "one: half-way"]
    assert lines[2].startswith("one: done in ")
    assert lines[4].startswith("two: FAILED after ")


def test_a_run_on_a_terminal_shows_every_step() -> None:
    """The last frame of the table has every step with its mark."""
    out = io.StringIO()
    with View(["one", "two"], Console(file=out, width=80, force_terminal=True)) as view, view.step("one"):
        pass
    frame = out.getvalue().rpartition("✓")[2]
    assert "one" in frame
    assert "two" in frame


def test_an_account_tells_who_sent_how_much_to_whom() -> None:
    """The account names the pods, the bytes that moved, and the first-token times."""
    before, after = engine_metrics.parsed(""), engine_metrics.parsed(METRICS)
    pods = [
        pools.PodView(name, role, ip, ready=True, leaving=False, state="ready", started_at=datetime.now(UTC))
        for name, role, ip in (("pre", "prefill", "10.0.0.1"), ("dec", "decode", "10.0.0.2"))
    ]
    answered = talk.Answered("words", 43, 0.3, ttft_s=0.25, first_token_s=1.0)
    measured = account.Measured(
        pods=pods,
        before={pod.name: before for pod in pods},
        after={pod.name: after for pod in pods},
        streams=[answered, answered],
        chat=answered,
        service_url="http://10.96.0.1",
        apply_to_ready_s=60.0,
        own_start_s=57.0,
        overhead_s=3.25,
    )
    told = account.told(measured)
    assert "131,072 bytes moved by NIXL from pre (10.0.0.1) to dec (10.0.0.2)" in told
    assert "time to first token (TTFT): 250 ms, then 250 ms" in told
    assert "3.2 s" in told


def test_what_to_try_next_can_be_pasted() -> None:
    """Every line is a command, and behind it what it shows; the first one names the folders of the others' programs."""
    pool = pools.Pool(api=None, name="tiny", namespace="default")  # type: ignore[arg-type]  # asked for its names only
    text = account.next_steps("/cache/bin/kubectl", Path("/k"), pool, url="http://10.96.0.1", model="tiny")
    title, *lines = text.replace("\\\n", "").splitlines()
    assert title == "Try next"
    assert all(command.strip() and shown.strip() for command, shown in (line.split("   # ") for line in lines))
    first, *commands = (line.split()[0] for line in lines)
    assert first == "export"
    assert set(commands) == {"kubectl", "pdpool", "curl", "make"}
    assert f"PATH=/cache/bin:{Path(sys.executable).parent}:$PATH" in lines[0]


def test_the_demos_own_kubeconfig_is_not_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the demo's own kubeconfig in the environment its own cluster is meant; any other file is another cluster."""
    own, other = tmp_path / "own", tmp_path / "other"

    class Layout:
        kubeconfig = own

    monkeypatch.setattr(options, "load", lambda name: Layout if name == DEFAULT_NODE_NAME else None)
    for given, meant in ((own, None), (other, other)):
        monkeypatch.setenv("KUBECONFIG", str(given))
        assert options.parsed(["down"]).kubeconfig == meant
    monkeypatch.delenv("KUBECONFIG")
    assert options.parsed(["up"]).own_cluster


def test_the_manifest_takes_other_images() -> None:
    """Images given for operator and router stand where the committed ones stood, and nothing else changes."""
    plain = product.manifest()
    changed = product.manifest(operator_image="r/operator:2", router_image="r/router:2")
    assert [each for each in plain if each["kind"] != "Deployment"] == [
        each for each in changed if each["kind"] != "Deployment"
    ]
    (deployment,) = (each for each in changed if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "r/operator:2"
    assert [each for each in container["args"] if "router-image" in each] == ["--router-image=r/router:2"]


@pytest.mark.parametrize(
    ("status", "text", "failures"),
    [(200, "data: [DONE]\n\n", 0), (503, "busy", 2), (200, 'data: {"a": 1}\n\n', 1)],
    ids=["whole", "refused", "cut off"],
)
def test_a_trickle_tells_failures(status: int, text: str, failures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer other than 200 is a failure, and so is a stream (every other request) that ends without [DONE]."""
    client = functools.partial(
        httpx.AsyncClient, transport=httpx.MockTransport(lambda _: httpx.Response(status, text=text))
    )
    monkeypatch.setattr(httpx, "AsyncClient", client)
    with traffic.Trickle("http://router", "m", every_s=0.0, limit=2) as trickle:
        assert trickle._thread is not None
        trickle._thread.join()
    assert len(trickle.outcomes) == 2
    assert len(trickle.failures()) == failures
