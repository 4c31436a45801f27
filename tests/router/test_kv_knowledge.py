"""From text to token blocks to endpoints: what is learned from prefill answers, and how well it predicts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdpool_api.engines.vllm.legs import Route
from pdpool_api.engines.vllm.prompts import prompt_text
from pdpool_router.kv.blocks import CHUNK_BYTES, TokenChain, packed
from pdpool_router.kv.knowledge import Prefixes, prompt_of
from pdpool_router.kv.texts import TextMap

if TYPE_CHECKING:
    from pdpool_router.kv.index import Holder
    from pdpool_router.records import Match, Prompt

SIZE = 16


def prompt(text: str, *, adapter: str = "", salt: str = "") -> Prompt:
    fields = {"prompt": msgspec.Raw(msgspec.json.encode(text))}
    if salt:
        fields["cache_salt"] = msgspec.Raw(msgspec.json.encode(salt))
    found = prompt_text(fields, Route.COMPLETIONS)
    assert found is not None
    return prompt_of(found, adapter)


def by_ids(ids: list[int], *, adapter: str = "", salt: str = "") -> Prompt:
    fields = {"prompt": msgspec.Raw(msgspec.json.encode(ids))}
    if salt:
        fields["cache_salt"] = msgspec.Raw(msgspec.json.encode(salt))
    found = prompt_text(fields, Route.COMPLETIONS)
    assert found is not None
    return prompt_of(found, adapter)


def chain(ids: list[int], **names: str) -> TokenChain:
    tokens = packed(ids)
    assert tokens is not None
    return TokenChain(tokens, **names)


def tokenised(text: str, kinds: int = 6) -> list[int]:
    """A tokenizer whose tokens have two to `kinds` + 1 characters, by the text so far in its word only."""
    ids = []
    at = 0
    while at < len(text):
        step = 2 + (ord(text[at]) * 7 + 3) % kinds
        ids.append(hash_of(text[at : at + step]))
        at += step
    return ids


def hash_of(piece: str) -> int:
    value = 0
    for letter in piece:
        value = (value * 131 + ord(letter)) % 100_003
    return value


def store(known: Prefixes, holder: Holder, ids: TokenChain, size: int = SIZE) -> None:
    known.sees_block_size(holder, size)
    keys = ids.keys(size)
    known.blocks.store(holder, keys, keys)


def words(rng: random.Random, count: int) -> str:
    return " ".join("".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(count))


def test_a_prompt_of_ids_matches_events_at_once() -> None:
    """Whole blocks, at most all but the last token; the same ids under an adapter or a salt are others (Q57)."""
    known = Prefixes(1000)
    ids = list(range(64))
    base, adapted, salted = (known.told(name, 0) for name in ("base", "adapted", "salted"))
    store(known, base, chain(ids))
    store(known, adapted, chain(ids, adapter="a"))
    store(known, salted, chain(ids, salt="s"))
    assert known.match(by_ids(ids)).cached == {"base": 48}
    assert known.match(by_ids([*ids, 7])).cached == {"base": 64}
    assert known.match(by_ids(ids, adapter="a")).cached == {"adapted": 48}
    assert known.match(by_ids(ids, adapter="b")).cached == {}
    assert known.match(by_ids(ids, salt="s")).cached == {"salted": 48}
    assert known.match(by_ids([1, *ids])).cached == {}


def test_engines_of_other_seeds_match_alike() -> None:
    """An engine's own names of blocks are only names: two that name the same tokens differently both match (Q62)."""
    known = Prefixes(1000)
    ids = chain(list(range(100)))
    for number, name in enumerate(("one", "two")):
        holder = known.told(name, 0)
        known.sees_block_size(holder, SIZE)
        known.blocks.store(holder, [key ^ (number + 1) for key in ids.keys(SIZE)], ids.keys(SIZE))
    assert known.match(by_ids(list(range(100)))).cached == {"one": 96, "two": 96}


def test_block_sizes_are_those_of_the_events() -> None:
    """A 1,088-token prompt has two blocks of 544 (Q99), and another endpoint's blocks may have another size."""
    known = Prefixes(1000)
    ids = list(range(1090))
    store(known, known.told("hybrid", 0), chain(ids[:1088]), 544)
    store(known, known.told("plain", 0), chain(ids[:100]), 16)
    assert known.match(by_ids(ids)).cached == {"hybrid": 1088, "plain": 96}
    assert known.block_sizes == [16, 544]


def test_text_matches_once_its_ids_were_seen() -> None:
    """Unknown text has no holder; after one answer with ids it matches what events told, exactly where it is whole."""
    rng = random.Random(3)
    known = Prefixes(10_000)
    text = words(rng, 400)
    ids = chain(tokenised(text))
    store(known, known.told("p", 0), ids)
    before = known.match(prompt(text))
    assert before.cached == {}
    assert known.wants_ids(before)
    known.learn(prompt(text), ids)
    after = known.match(prompt(text))
    assert after.cached == {"p": (ids.tokens - 1) // SIZE * SIZE}
    assert after.tokens == ids.tokens
    assert not known.wants_ids(after)
    assert known.match(prompt(text, salt="other")).cached == {}
    assert known.match(prompt(text, adapter="other")).cached == {}


def test_a_common_middle_is_no_common_prefix() -> None:
    """X after Y belongs to whom has Y; what shares only its middle with X belongs to nobody (Q56)."""
    rng = random.Random(4)
    known = Prefixes(10_000)
    x, y, z = (words(rng, 600) for _ in range(3))
    for name, text in (("has-x", x), ("has-y", y)):
        store(known, known.told(name, 0), chain(tokenised(text)))
        known.learn(prompt(text), chain(tokenised(text)))
    assert set(known.match(prompt(y + x)).cached) == {"has-y"}
    assert set(known.match(prompt(x + y)).cached) == {"has-x"}
    assert known.match(prompt(z[:CHUNK_BYTES] + x)).cached == {}


def conversations(rng: random.Random, count: int, turns: int) -> list[list[str]]:
    """Texts of turns: a few system prompts, each turn's text beginning with the turn before."""
    systems = [words(rng, 250) for _ in range(3)]
    made = []
    for _ in range(count):
        text = rng.choice(systems)
        turns_of = []
        for _ in range(turns):
            text += "\n" + words(rng, rng.randint(10, 120))
            turns_of.append(text)
        made.append(turns_of)
    return made


@pytest.mark.parametrize("kinds", [6, 3])
@pytest.mark.parametrize("seed", range(3))
def test_estimates_from_text_are_close(seed: int, kinds: int) -> None:
    """On conversations with shared system prompts: within 64 tokens of the truth in at least 95 % of turns.

    Where a chunk of text has more than 64 tokens too, and without leaning to either side.
    """
    rng = random.Random(seed)
    known = Prefixes(100_000)
    holder = known.told("p", 0)
    known.sees_block_size(holder, SIZE)
    errors = []
    truth: set[int] = set()
    turns = conversations(rng, 12, 6)
    for turn in range(6):
        for one in turns:
            ids = chain(tokenised(one[turn], kinds))
            keys = ids.keys(SIZE)[: (ids.tokens - 1) // SIZE]
            actual = next((n for n, key in enumerate(keys) if key not in truth), len(keys)) * SIZE
            match = known.match(prompt(one[turn]))
            if actual:
                errors.append(match.cached.get("p", 0) - actual)
            if known.wants_ids(match):
                known.learn(prompt(one[turn]), ids)
            store(known, holder, ids)
            truth.update(ids.keys(SIZE))
    close = sum(1 for error in errors if abs(error) <= 64)
    assert len(errors) > 60
    assert close >= 0.95 * len(errors), sorted(errors)
    assert abs(sum(errors)) <= SIZE * len(errors), sorted(errors)


def test_repeats_that_no_event_matches_are_counted_until_one_does() -> None:
    """Engines that tell of blocks, but of other tokens than what they are asked (Q62)."""
    known = Prefixes(10_000)
    holder = known.told("p", 0)
    ids = list(range(100))
    assert not known.match(by_ids(ids)).cached  # nothing is told of at all: no wonder
    store(known, holder, chain([7, *ids]))
    for _ in range(3):
        assert not known.match(by_ids(ids)).cached
        assert not known.match(by_ids(ids[:20])).cached  # too short to leave blocks
        assert not known.match(prompt("unknown text " * 40)).cached
    assert known.unmatched == 4
    for number in range(2000):  # prompts that nobody repeats say nothing, and are not kept
        known.match(by_ids([number + 1000, *ids]))
    assert known.unmatched == 4
    assert known.match(by_ids([7, *ids])).cached
    assert known.unmatched == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 12)), min_size=1, max_size=40), st.integers(8, 400))
@settings(max_examples=50, deadline=None)
def test_a_text_map_is_bounded_and_never_wrong(learned: list[tuple[int, int]], bound: int) -> None:
    """Whatever was learned in whatever order: the chain of a whole text is its tokens' chain, and the bound holds."""
    texts = TextMap(SIZE, bound)
    for family, chunks in learned:
        text = (f"{family}" * CHUNK_BYTES * chunks)[: CHUNK_BYTES * chunks + 7 * family]
        one, ids = prompt(text), chain(tokenised(text))
        texts.learn(one, ids.keys(SIZE), ids.tokens)
        found = texts.find(one)
        assert found is not None
        assert found.whole
        assert found.node.tokens == ids.tokens
        assert found.node.chain(found.node.known_blocks) == ids.keys(SIZE)
        assert len(texts) <= bound // 4 + 2


def test_other_ids_for_the_same_text_replace_the_old() -> None:
    """A new template or tokenizer makes other tokens of a text: the newest answer counts."""
    known = Prefixes(10_000)
    known.sees_block_size(known.told("p", 0), SIZE)
    text = words(random.Random(1), 300)
    old, new = chain(tokenised(text)), chain([7, *tokenised(text)])
    known.learn(prompt(text), old)
    known.learn(prompt(text), new)
    store(known, known.told("p", 0), new)
    assert known.match(prompt(text)).cached == {"p": (new.tokens - 1) // SIZE * SIZE}


def test_without_events_the_router_goes_by_what_it_sent() -> None:
    """A prompt that was sent somewhere is believed to be there, as far as texts agree; events end that."""
    known = Prefixes(10_000)
    for uid in ("p", "q"):
        known.appear(uid)
    text = words(random.Random(2), 500)
    known.begin(prompt(text), "p")
    known.end(prompt(text), "p")
    match = known.match(prompt(text + " and more"))
    assert set(match.cached) == {"p"}
    assert abs(match.cached["p"] - len(text) / 4) < 80
    assert not known.wants_ids(match)
    assert known.guessed == {"p", "q"}
    known.told("p", 0)
    assert known.guessed == {"q"}
    assert known.match(prompt(text)).cached == {}
    known.untold("p", 0)
    assert known.guessed == {"p", "q"}


def test_what_is_under_way_counts_until_it_ends() -> None:
    """A burst of equal prompts sees the first of them before its engine has told anything."""
    known = Prefixes(10_000)
    known.told("p", 0)
    text = words(random.Random(2), 500)
    known.begin(prompt(text), "p")
    known.begin(prompt(text), "p")
    known.end(prompt(text), "p")
    assert known.match(prompt(text)).cached["p"] > len(text) / 4 - 80
    known.end(prompt(text), "p")
    known.end(prompt(text), "p")
    assert known.match(prompt(text)).cached == {}


def test_ranks_of_an_endpoint_are_told_apart() -> None:
    """The rank that holds most counts, and is named."""
    known = Prefixes(1000)
    ids = list(range(100))
    store(known, known.told("p", 0), chain(ids[:32]))
    store(known, known.told("p", 1), chain(ids))
    found: Match = known.match(by_ids(ids))
    assert found.cached == {"p": 96}
    assert found.ranks == {"p": 1}


def test_a_gone_endpoint_leaves_nothing() -> None:
    """Its blocks count no more, at once (Q61)."""
    known = Prefixes(1000)
    ids = list(range(100))
    store(known, known.told("p", 0), chain(ids))
    assert known.blocks_of("p") == 6
    known.vanish("p")
    assert known.blocks_of("p") == 0
    assert known.match(by_ids(ids)).cached == {}


def test_a_conversation_has_one_key_and_others_have_others() -> None:
    """The opening counts: system prompt and first question; later turns and answers do not."""

    def chat(*contents: str) -> Prompt:
        roles = ("system", "user", "assistant", "user", "assistant")
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
        found = prompt_text({"messages": msgspec.Raw(msgspec.json.encode(messages))}, Route.CHAT)
        assert found is not None
        return prompt_of(found, "")

    first = chat("be kind" * 200, "what is x?")
    assert chat("be kind" * 200, "what is x?", "it is y", "and z?").conversation == first.conversation
    assert chat("be kind" * 200, "what is y?").conversation != first.conversation


def test_what_is_learned_before_the_first_event_is_not_lost() -> None:
    """A fresh pool's first answers come before any event tells a block size; they count all the same."""
    known = Prefixes(1000)
    holder = known.told("p", 0)
    text = words(random.Random(9), 200)
    ids = chain(tokenised(text))
    assert known.wants_ids(known.match(prompt(text)))
    known.learn(prompt(text), ids)
    store(known, holder, ids)
    assert known.match(prompt(text)).cached == {"p": (ids.tokens - 1) // SIZE * SIZE}
    assert not known.wants_ids(known.match(prompt(text)))
