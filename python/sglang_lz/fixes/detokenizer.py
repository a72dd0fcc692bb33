"""The text of an output while its tokens arrive, the same however many arrive at a time.

A token may end within a character. Its decoder then shows replacement characters, which the next
tokens may still change. So text becomes final token by token: with the first token after which it
holds no such character, or after which it cannot change any more. Tokens that arrive together are
halved until their text is plain; most are plain at once.
"""

from __future__ import annotations

from typing import Any

REPLACEMENT = "\ufffd"
MOST_PENDING = 3
"""A character has at most 4 bytes, so no more of the last replacement characters can change."""
MOST_KEPT = 12
"""How many tokens whose text is not final are decoded again with the next one."""


def advance(
    manager: Any, batch: Any, row: int, window: list[int], texts: tuple[str, str]
) -> tuple[str, str]:
    """Take the new tokens of a request into its text (upstream's hook).

    Upstream compares lengths of texts that may become shorter, and so sends characters twice when
    several tokens arrive at a time. It holds back text that ends in a replacement character for as
    long as it does.

    Args:
        manager: upstream's DetokenizerManager.
        batch: upstream's BatchTokenIDOutput.
        row: the request's place in the batch.
        window: the tokens to decode; the first `read_offset` of them have been decoded before.
        texts: the text of those, and of the window.

    Returns:
        The text after the final one, which may still change, and the text to send in a stream.
    """
    status = manager.decode_status[batch.rids[row]]
    skips = batch.skip_special_tokens[row]
    spaces = batch.spaces_between_special_tokens[row]

    def decode(tokens: list[int]) -> str:
        if manager.disable_tokenizer_batch_decode:
            decoded = manager.tokenizer.decode(
                tokens, skip_special_tokens=skips, spaces_between_special_tokens=spaces
            )
        else:
            (decoded,) = manager._grouped_batch_decode([tokens], [skips], [spaces])
        return str(decoded)

    def take(window: list[int], arrived: int, texts: tuple[str, str] | None = None) -> str:
        read = status.read_offset
        before, text = texts or (decode(window[:read]), decode(window))

        def rest(text: str, end: int | None = None) -> str:
            # Byte fallback shows no character of a run of bytes that is wrong anywhere.
            is_longer = text.startswith(before)
            return text[len(before) :] if is_longer else decode(window[read:end])

        new = rest(text)
        if arrived > 1 and REPLACEMENT in new:
            half = arrived // 2
            take(window[:-half], arrived - half)
            return take([*status.decode_ids, *window[-half:]], half)
        status.decode_ids = window
        if new and not new.endswith(REPLACEMENT):
            settle(len(window), new)
            return ""
        if len(window) - read > MOST_KEPT:
            first = rest(decode(window[:-MOST_KEPT]), -MOST_KEPT)
            kept = new[len(first) :]
            if not new:
                del status.decode_ids[read:]
            elif new.startswith(first) and len(kept) >= MOST_PENDING:
                settle(len(window) - MOST_KEPT, first)
                context = decode(status.decode_ids[: status.read_offset])
                if decode(status.decode_ids)[len(context) :] != kept:
                    settle(len(status.decode_ids), kept)
                    return ""
                return kept
        return new

    def settle(end: int, new: str) -> None:
        status.append_decoded_text(new)
        del status.decode_ids[: status.read_offset]
        status.read_offset = end - status.read_offset

    known, length = len(status.decoded_text_chunks), status.decoded_text_len
    arrived = min(len(batch.decode_ids[row]), len(window) - status.read_offset)
    pending = take(window, arrived, texts)
    sent = status.sent_offset
    grown = "".join(status.decoded_text_chunks[known:]) + pending
    shown = length + len(grown) - min(_trailing(pending), MOST_PENDING)
    if batch.finished_reasons[row] is None:
        status.sent_offset = max(sent, shown)
    return pending, grown[sent - length : max(sent, shown) - length]


def _trailing(text: str) -> int:
    return len(text) - len(text.rstrip(REPLACEMENT))
