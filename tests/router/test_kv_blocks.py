"""Keys of prefixes: chained, rooted, the same everywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdpool_router.kv import blocks
from pdpool_router.kv.blocks import CHUNK_BYTES, KEYED_BYTES, TokenChain, chunk_keys, packed, text_root, whole_key

TEXTS = st.binary(max_size=4 * CHUNK_BYTES)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=100)


@given(TEXTS, TEXTS, TEXTS)
def test_texts_share_keys_exactly_as_far_as_they_agree(shared: bytes, one: bytes, other: bytes) -> None:
    """A key is shared where all text up to its end is, and nowhere else: a common middle is no common prefix (Q56)."""
    first, second = shared + one, shared + other
    keys, others = chunk_keys(first, 7), chunk_keys(second, 7)
    assert len(keys) == len(first) // CHUNK_BYTES
    for number, (key, another) in enumerate(zip(keys, others, strict=False), 1):
        assert (key == another) == (first[: number * CHUNK_BYTES] == second[: number * CHUNK_BYTES])
    assert (whole_key(first, keys, 7) == whole_key(second, others, 7)) == (first == second)


@given(TOKENS, TOKENS, TOKENS, st.sampled_from((1, 16, 32)))
def test_tokens_share_keys_exactly_as_far_as_they_agree(
    shared: list[int], one: list[int], other: list[int], size: int
) -> None:
    """The same for blocks of tokens."""
    first, second = shared + one, shared + other
    keys, others = TokenChain(packed(first) or b"").keys(size), TokenChain(packed(second) or b"").keys(size)
    assert len(keys) == len(first) // size
    for number, (key, another) in enumerate(zip(keys, others, strict=False), 1):
        assert (key == another) == (first[: number * size] == second[: number * size])


def test_roots_keep_models_adapters_and_salts_apart() -> None:
    """Equal tokens of another adapter or salt, or equal text in another context, have no key in common."""
    ids = packed(list(range(64))) or b""
    chains = [
        TokenChain(ids, adapter=adapter, salt=salt).keys(32)
        for adapter, salt in (("", ""), ("a", ""), ("b", ""), ("", "a"), ("a", "a"))
    ]
    assert len({key for chain in chains for key in chain}) == 2 * len(chains)
    assert len({text_root(b"x", b""), text_root(b"", b"x"), text_root(b"xx"), text_root(b"x", b"x")}) == 4


def test_what_is_no_token_has_no_keys() -> None:
    """Negative numbers and such beyond 32 bits are nobody's tokens; an engine will refuse them."""
    assert packed([-1]) is None
    assert packed([2**32]) is None
    assert packed([]) == b""


def test_keys_do_not_depend_on_the_process() -> None:
    """Two routers find the same keys: these are written down."""
    assert chunk_keys(b"a" * CHUNK_BYTES, text_root(b"/v1/completions", b"")) == [84998589614497089]
    assert TokenChain(packed(list(range(32))) or b"").keys(32) == [813996947883338807]
    assert blocks.KEY_MASK == 2**60 - 1


def test_a_huge_text_has_no_more_keys_than_a_large_one() -> None:
    """What no context holds costs no more than what one could, and its end still makes it another text."""
    texts = [b"x" * (2 * KEYED_BYTES) + end for end in (b"one", b"two")]
    keys, others = (chunk_keys(text, 7) for text in texts)
    assert keys == others == chunk_keys(texts[0][:KEYED_BYTES], 7)
    assert len(keys) == KEYED_BYTES // CHUNK_BYTES
    assert whole_key(texts[0], keys, 7) != whole_key(texts[1], others, 7)
