"""What is known of prefixes, joined: texts, token blocks, the router's own decisions, and what is under way.

Boundary: pure bookkeeping behind two questions (`match`, `match_ids`). For each endpoint the best source counts: its
KV events where they come, else what this router sent there (approximate, and said so). What requests in flight will
leave is added to both, since an engine tells of a block only when it is computed or pulled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_router.kv.blocks import CHUNK_BYTES, TokenChain, chunk_keys, packed, text_root, whole_key
from pdpool_router.kv.index import BlockIndex, Holder
from pdpool_router.kv.texts import Found, TextMap, common_prefix
from pdpool_router.records import Match, Prompt, TokenKeys

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pdpool_api.engines.vllm.prompts import PromptText

BYTES_PER_TOKEN: Final = 4.0
"""Of English text, before any prompt was seen."""
_RATIO_MEMORY: Final = 0.95
_LEGS_LOOKED_AT: Final = 2
_MOST_EARLY: Final = 64
_OPENING_CHUNK: Final = 0
_MOST_REPEATS: Final = 1024
_BLOCKS_TO_EXPECT: Final = 2
"""A prompt that has no more of them may well have left none."""


def prompt_of(text: PromptText, adapter: str) -> Prompt:
    """A prompt's keys; `adapter` is empty for the model itself, whatever name it was asked for by."""
    root = text_root(text.context, adapter.encode(), text.salt.encode())
    keys = chunk_keys(text.text, root)
    ids = packed(text.ids) if text.ids is not None else None
    whole = whole_key(text.text, keys, root)
    if text.opening_bytes:
        conversation = text_root(text.text[: text.opening_bytes], adapter.encode(), text.salt.encode())
    else:
        conversation = keys[_OPENING_CHUNK] if keys else whole
    return Prompt(
        keys=keys,
        whole=whole,
        text_bytes=len(text.text),
        conversation=conversation,
        opening_bytes=text.opening_bytes,
        adapter=adapter,
        salt=text.salt,
        ids=TokenChain(ids, adapter=adapter, salt=text.salt) if ids is not None else None,
    )


def session_key(name: bytes) -> int:
    """A client's own name of a conversation as a key; never 0."""
    return text_root(b"session", name) or 1


class Underway:
    """Prompts that endpoints compute or pull at this moment, by the prompt's first key."""

    def __init__(self) -> None:
        self._legs: dict[int, dict[str, list[Sequence[int]]]] = {}

    def begin(self, prompt: Prompt, uid: str) -> None:
        """A leg with this prompt was sent there."""
        keys = prompt.keys or [prompt.whole]
        self._legs.setdefault(keys[0], {}).setdefault(uid, []).append(keys)

    def end(self, prompt: Prompt, uid: str) -> None:
        """The leg is over."""
        keys = prompt.keys or [prompt.whole]
        by_uid = self._legs.get(keys[0])
        legs = by_uid.get(uid) if by_uid is not None else None
        if by_uid is None or legs is None:
            return
        for number, leg in enumerate(legs):
            if leg is keys or leg == keys:
                del legs[number]
                break
        if not legs:
            del by_uid[uid]
            if not by_uid:
                del self._legs[keys[0]]

    def chunks(self, prompt: Prompt) -> Iterable[tuple[str, int]]:
        """(uid, leading chunks of the prompt that will be there)."""
        keys = prompt.keys or [prompt.whole]
        by_uid = self._legs.get(keys[0])
        if by_uid is None:
            return ()
        return [(uid, max(common_prefix(keys, leg) for leg in legs[-_LEGS_LOOKED_AT:])) for uid, legs in by_uid.items()]


class Prefixes:
    """All of it; one writer, the event loop."""

    def __init__(self, max_blocks: int) -> None:
        self.blocks: Final = BlockIndex(max_blocks)
        """What engines tell."""
        self.guesses: Final = BlockIndex(max_blocks)
        """What was sent where, in chunks of text; only for endpoints that tell nothing."""
        self.underway: Final = Underway()
        self.bytes_per_token = BYTES_PER_TOKEN
        self._texts: dict[int, TextMap] = {}
        self._early: list[tuple[Prompt, TokenKeys]] = []
        """Learned before any event told a block size."""
        self._told: dict[str, dict[int, Holder]] = {}
        self._guessed: dict[str, Holder] = {}
        self.unmatched = 0
        """Repeated prompts in a row that no told block matched, though engines tell of blocks."""
        self._asked: dict[int, None] = {}
        """Prompts that nothing matched lately, the oldest first."""

    # --- endpoints -------------------------------------------------------------------------------------------------
    def configure(self, max_blocks: int) -> None:
        """Sets the bound."""
        self.blocks.max_blocks = max_blocks
        self.guesses.max_blocks = max_blocks
        for texts in self._texts.values():
            texts.max_blocks = max_blocks

    def appear(self, uid: str) -> None:
        """An endpoint that is not known yet: guessed until it tells."""
        if uid not in self._told and uid not in self._guessed:
            self._guessed[uid] = self.guesses.add(uid)

    def vanish(self, uid: str) -> None:
        """An endpoint is gone, and what it held."""
        for holder in self._told.pop(uid, {}).values():
            self.blocks.drop(holder)
        guessed = self._guessed.pop(uid, None)
        if guessed is not None:
            self.guesses.drop(guessed)

    def told(self, uid: str, rank: int) -> Holder:
        """The holder for events of an endpoint's rank, which from now on count instead of guesses."""
        ranks = self._told.setdefault(uid, {})
        if rank not in ranks:
            ranks[rank] = self.blocks.add(uid, rank)
        guessed = self._guessed.pop(uid, None)
        if guessed is not None:
            self.guesses.drop(guessed)
        return ranks[rank]

    def untold(self, uid: str, rank: int) -> None:
        """Events of a rank no longer come: what it told is forgotten, and with the last rank guessing begins."""
        ranks = self._told.get(uid)
        if ranks is None or rank not in ranks:
            return
        self.blocks.drop(ranks.pop(rank))
        if not ranks:
            del self._told[uid]
            self.appear(uid)

    def sees_block_size(self, holder: Holder, block_tokens: int) -> None:
        """An event says how many tokens a block of its engine has."""
        holder.block_tokens = block_tokens
        if block_tokens not in self._texts:
            self._texts[block_tokens] = texts = TextMap(block_tokens, self.blocks.max_blocks)
            early, self._early = self._early, []
            for prompt, ids in early:
                texts.learn(prompt, ids.keys(block_tokens), ids.tokens)

    @property
    def block_sizes(self) -> list[int]:
        """Block sizes that events told."""
        return sorted(self._texts)

    def block_sizes_of(self, uid: str) -> set[int]:
        """Block sizes that an endpoint's events told."""
        return {holder.block_tokens for holder in self._told.get(uid, {}).values() if holder.block_tokens}

    @property
    def texts(self) -> int:
        """Pieces of text whose tokens are known."""
        return sum(map(len, self._texts.values()))

    @property
    def guessed(self) -> frozenset[str]:
        """The uids of endpoints whose blocks are guessed."""
        return frozenset(self._guessed)

    def blocks_of(self, uid: str) -> int:
        """Blocks (guessed: chunks of text) that an endpoint is believed to hold."""
        told = self._told.get(uid)
        if told is not None:
            return sum(len(holder.blocks) for holder in told.values())
        guessed = self._guessed.get(uid)
        return len(guessed.blocks) if guessed is not None else 0

    def sweep(self) -> None:
        """Some housekeeping; call it now and then."""
        self.blocks.sweep()
        self.guesses.sweep()

    # --- what requests teach ---------------------------------------------------------------------------------------
    def begin(self, prompt: Prompt, uid: str) -> None:
        """A leg with this prompt is sent to an endpoint; call `end` once when the request is over."""
        self.underway.begin(prompt, uid)
        guessed = self._guessed.get(uid)
        if guessed is not None:
            keys = [*prompt.keys, prompt.whole]
            blocks = guessed.blocks
            self.guesses.store(guessed, fresh := [key for key in keys if key not in blocks], fresh)

    def end(self, prompt: Prompt, uid: str) -> None:
        """The request of such a leg is over."""
        self.underway.end(prompt, uid)

    def wants_ids(self, match: Match) -> bool:
        """Whether the token ids of a prompt would teach something."""
        return bool(self._told) and not match.known

    def count(self, prompt: Prompt, tokens: int) -> None:
        """An engine told how many tokens a prompt has."""
        if tokens > 0 and prompt.text_bytes and prompt.ids is None:
            ratio = prompt.text_bytes / tokens
            self.bytes_per_token = _RATIO_MEMORY * self.bytes_per_token + (1 - _RATIO_MEMORY) * ratio

    def learn(self, prompt: Prompt, ids: TokenKeys) -> None:
        """An engine told the token ids of a prompt."""
        if not self._texts and len(self._early) < _MOST_EARLY:
            self._early.append((prompt, ids))
        for size, texts in self._texts.items():
            texts.learn(prompt, ids.keys(size), ids.tokens)

    @property
    def version(self) -> int:
        """See `records.Knowledge`."""
        return self.blocks.changes + self.guesses.changes

    # --- questions -------------------------------------------------------------------------------------------------
    def match(self, prompt: Prompt) -> Match:
        """See `records.Knowledge`."""
        if prompt.ids is not None:
            return self._match_ids(prompt, prompt.ids, known=True)
        cached: dict[str, int] = {}
        ranks: dict[str, int] = {}
        found: Found | None = None
        known = bool(self._texts)
        for size, texts in self._texts.items():
            found = texts.find(prompt)
            if found is None:
                known = False
                continue
            known = known and (found.whole or (found.chunks == len(prompt.keys) and found.chunks > 0))
            tokens = found.node.tokens - 1 if found.whole else found.node.tokens + self._likely_more(prompt, found)
            blocks = min(max(tokens, 0) // size, found.node.known_blocks)
            self._add(self.blocks.match(found.node.chain(blocks)), size, cached, ranks)
        tokens = self._tokens(prompt, found)
        self._count_match(prompt, tokens, matched=bool(cached))
        self._add_unsaid(prompt, tokens, cached)
        return Match(tokens, cached, exact=False, ranks=ranks, version=self.version, known=known)

    def match_ids(self, prompt: Prompt, ids: TokenKeys) -> Match:
        """See `records.Knowledge`."""
        return self._match_ids(prompt, ids, known=False)

    def _match_ids(self, prompt: Prompt, ids: TokenKeys, *, known: bool) -> Match:
        cached: dict[str, int] = {}
        ranks: dict[str, int] = {}
        for size in self._texts:
            usable = max(0, ids.tokens - 1) // size
            keys = ids.keys(size)
            self._add(self.blocks.match(keys[:usable] if usable < len(keys) else keys), size, cached, ranks)
        if known:
            self._count_match(prompt, ids.tokens, matched=bool(cached))
        self._add_unsaid(prompt, ids.tokens, cached)
        return Match(ids.tokens, cached, exact=True, ranks=ranks, version=self.version, known=known)

    def _add(self, found: list[tuple[int, int]], size: int, cached: dict[str, int], ranks: dict[str, int]) -> None:
        for depth, mask in found:
            tokens = depth * size
            for holder in self.blocks.holders(mask):
                if tokens > cached.get(holder.uid, 0):
                    cached[holder.uid] = tokens
                    if holder.rank or holder.uid in ranks or len(self._told.get(holder.uid, ())) > 1:
                        ranks[holder.uid] = holder.rank

    def _count_match(self, prompt: Prompt, tokens: int, *, matched: bool) -> None:
        """Engines that tell of blocks which never match what they are asked tell of something else (other ids)."""
        if matched:
            self.unmatched = 0
        elif self.blocks.size and tokens > _BLOCKS_TO_EXPECT * max(self._texts):
            if prompt.whole in self._asked:
                self.unmatched += 1
                return
            self._asked[prompt.whole] = None
            if len(self._asked) > _MOST_REPEATS:
                del self._asked[next(iter(self._asked))]

    def _likely_more(self, prompt: Prompt, found: Found) -> int:
        """Tokens of the chunk in which a prompt leaves the known text: on the average half of it is still common."""
        rest = min(CHUNK_BYTES, prompt.text_bytes - found.chunks * CHUNK_BYTES)
        return int(rest / 2 / self.bytes_per_token)

    def _tokens(self, prompt: Prompt, found: Found | None) -> int:
        if found is None:
            return max(1, round(prompt.text_bytes / self.bytes_per_token))
        if found.whole:
            return found.node.tokens
        rest = prompt.text_bytes - found.chunks * CHUNK_BYTES
        return found.node.tokens + max(1, round(rest / self.bytes_per_token))

    def _add_unsaid(self, prompt: Prompt, tokens: int, cached: dict[str, int]) -> None:
        """Guesses, and what is under way: whole chunks of text, in tokens."""
        per_chunk = tokens * CHUNK_BYTES / max(prompt.text_bytes, 1)
        most = tokens - 1
        if self._guessed:
            keys = [*prompt.keys, prompt.whole]
            for depth, mask in self.guesses.match(keys):
                there = most if depth == len(keys) else min(int(depth * per_chunk), most)
                for holder in self.guesses.holders(mask):
                    cached[holder.uid] = there
        whole = len(prompt.keys)
        for uid, chunks in self.underway.chunks(prompt):
            there = most if chunks >= max(whole, 1) and not whole else min(int(chunks * per_chunk), most)
            if there > cached.get(uid, 0):
                cached[uid] = there
