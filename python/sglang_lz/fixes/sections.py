"""Where a thinking section begins in an output, the same in streams and in whole answers.

An output has one section at most. A tag in it that opens it is no part of it, wherever a model that
was made to think writes it. After the section everything is content, tags too, and so is what comes
before the section of a model that was not.
"""

from __future__ import annotations

from typing import Any


def skip_content(detector: Any, text: str) -> Any:
    """The parts of a whole output that does not begin with its thinking section (upstream's hook).

    Args:
        detector: upstream's BaseReasoningFormatDetector.
        text: the output.

    Returns:
        Upstream's StreamingParseResult, or None if the section begins with the output.
    """
    begin = 0 if detector._in_reasoning else text.find(detector.think_start_token)
    if begin == 0:
        return None
    if begin < 0 or _is_over(detector):
        begin = len(text)
    # An output without content has no section either.
    result = detector._detect_and_parse_impl(text[begin:]) if begin < len(text) else _result()
    result.normal_text = text[:begin] + result.normal_text
    return result


def open_section(detector: Any, opening: str) -> Any:
    """Take the tag that opens the section out of the buffer of a stream (upstream's hook).

    Args:
        detector: upstream's BaseReasoningFormatDetector.
        opening: the tag.

    Returns:
        Upstream's StreamingParseResult if there is content before the tag, else None.
    """
    text = detector._buffer
    if _is_over(detector) or opening not in text:
        return None
    begin = text.find(opening)
    if not detector._in_reasoning and begin > 0:
        detector._buffer = text[begin:]
        result = detector._parse_streaming_increment_impl("")
        result.normal_text = text[:begin] + result.normal_text
        return result
    detector._buffer = without_opening(detector, text, opening)
    detector._in_reasoning = True
    detector.stripped_think_start |= detector._buffer != text
    return None


def without_opening(detector: Any, text: str, opening: str) -> str:
    """A thinking section, and what follows it, without the tag that opens it (upstream's hook).

    Args:
        detector: upstream's BaseReasoningFormatDetector.
        text: begins in the section.
        opening: the tag.
    """
    section, closing, rest = text.partition(detector.think_end_token)
    if not detector._streamed_reasoning_tail and section.startswith(opening):
        begin = 0
        while section.startswith(opening, begin):
            begin += len(opening)
        section = section[begin:]
    elif not detector.stripped_think_start:
        section = section.replace(opening, "", 1)
    return section + closing + rest


def shown(detector: Any, text: str, opening: str) -> int:
    """How much of the content that a stream has is no beginning of a section (upstream's hook).

    Args:
        detector: upstream's BaseReasoningFormatDetector.
        text: the content.
        opening: the tag that would open the section.

    Returns:
        In characters.
    """
    held = 0 if _is_over(detector) else detector._ends_with_partial_token(text, opening)
    return len(text) - held


def _is_over(detector: Any) -> bool:
    """Whether the output's thinking section has ended."""
    begun = detector.force_reasoning or detector.stripped_think_start
    return begun and not detector._in_reasoning


def _result() -> Any:
    from sglang.srt.parser.reasoning_parser import StreamingParseResult

    return StreamingParseResult()
