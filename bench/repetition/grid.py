"""The grid: penalties as request fields, temperatures, seeds."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.repetition.items import Item
from sglang_lz.fields.lz import FIELDS as LZ_FIELDS
from sglang_lz.fields.lz import LARGEST_MAX_WINDOW_SIZE, LZParams

PRESETS: dict[str, tuple[str, ...]] = {
    "none": ("",),
    "lz": tuple(f"lz_penalty={alpha}" for alpha in (0.05, 0.1, 0.15, 0.2, 0.3)),
    "lz-onset": tuple(
        f"lz_penalty={alpha},lz_onset=2" for alpha in (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
    ),
    "lz-rate": tuple(f"lz_penalty={alpha},lz_cost=rate" for alpha in (0.05, 0.1, 0.15, 0.2, 0.3)),
    "repetition": tuple(f"repetition_penalty={factor}" for factor in (1.1, 1.2, 1.3, 1.4, 1.5)),
    "frequency": tuple(f"frequency_penalty={beta}" for beta in (0.1, 0.3, 0.5, 0.7, 1.0)),
    "presence": tuple(f"presence_penalty={beta}" for beta in (0.1, 0.3, 0.5, 0.7, 1.0)),
    "dry": tuple(f"dry_multiplier={factor}" for factor in (0.1, 0.2, 0.4, 0.8, 1.6)),
    "ngram": tuple(f"no_repeat_ngram_size={size}" for size in (4, 8, 12, 20, 30)),
}
"""What `--penalty NAME` stands for: one specification for each strength."""

# The LZ fields that a variant's name spells in its own way; the others stand by their names.
NAMED = ("lz_penalty", "lz_cost", "lz_include_prompt")
# The ranges that OpenAI's API and SGLang give the count penalties.
COUNT_PENALTIES = {
    "repetition_penalty": (0.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}


@dataclass(frozen=True)
class Variant:
    """One way to penalise.

    Attributes:
        name: short and canonical: "none", "lz 0.15", "repetition 1.2 + frequency 0.5".
        fields: what it adds to a request.
        family: the name without the strength; "" for none and for combinations.
        strength: the number left out of `family`; None where that is "".
    """

    name: str
    fields: dict[str, object]
    family: str
    strength: float | None


class Key(NamedTuple):
    """What identifies one sample of a run."""

    item: str
    variant: str
    temperature: float
    seed: int


@dataclass(frozen=True)
class Grid:
    """Every item is sampled under each variant, at each temperature, with each seed."""

    variants: Sequence[Variant]
    temperatures: Sequence[float]
    seeds: int

    def keys(self, items: Sequence[Item]) -> Iterator[Key]:
        """All samples, in an order such that any beginning of it is a fair part of the grid.

        First all of temperature 0, where a seed changes nothing and there is only seed 0. Then one
        seed after the other, and in each the items in a fixed random order, each with everything
        that is asked of it.
        """
        shuffled = [item.id for item in items]
        random.Random(0).shuffle(shuffled)
        greedy = [temperature for temperature in self.temperatures if temperature == 0]
        sampled = [temperature for temperature in self.temperatures if temperature > 0]
        for temperatures, seeds in ((greedy, 1), (sampled, self.seeds)):
            for seed in range(seeds):
                for item in shuffled:
                    for temperature in temperatures:
                        for variant in self.variants:
                            yield Key(item, variant.name, temperature, seed)


def expand(penalties: Sequence[str]) -> list[Variant]:
    """The variants that the values of `--penalty` name, each once, in their order.

    Raises:
        ValueError: a value that is no preset and no list of fields, or out of its field's range.
    """
    found: dict[str, Variant] = {}
    for penalty in penalties:
        for specification in PRESETS.get(penalty, (penalty,)):
            variant = _variant(_fields(specification))
            found.setdefault(variant.name, variant)
    return list(found.values())


def check_temperatures(temperatures: Sequence[float]) -> list[float]:
    """Each temperature once, in the given order.

    Raises:
        ValueError: one is not in [0, 2].
    """
    for temperature in temperatures:
        if not 0 <= temperature <= 2:
            raise ValueError(f"--temperature must be a number in [0, 2], got {temperature}.")
    return list(dict.fromkeys(temperatures))


def _fields(specification: str) -> dict[str, object]:
    """Read "field=value,field=value"; a value is JSON, or else a string."""
    fields: dict[str, object] = {}
    for part in filter(None, specification.split(",")):
        name, equals, value = (text.strip() for text in part.partition("="))
        if not (name.isidentifier() and equals and value):
            raise ValueError(
                f"--penalty must be {', '.join(PRESETS)} or field=value[,field=value ...], "
                f"got {specification!r}."
            )
        if name in fields:
            raise ValueError(f"--penalty gives {name} twice: {specification!r}.")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


@dataclass(frozen=True)
class _Part:
    """A part of a variant's name: what stands before its strength and after it."""

    kind: str
    settings: str
    strength: float | None

    def __str__(self) -> str:
        strength = "" if self.strength is None else f" {self.strength:g}"
        return f"{self.kind}{strength}{self.settings}"


def _variant(fields: dict[str, object]) -> Variant:
    """Check the fields and give them their name."""
    lz = {name: value for name, value in fields.items() if name in LZ_FIELDS}
    others = {name: value for name, value in fields.items() if name not in LZ_FIELDS}
    parts, sent = [], others
    if lz:
        params = _lz_params(lz)
        # Named even where it is the default: a name must mean the same on every server.
        sent = {**lz, "lz_cost": params.cost, **others}
        parts.append(_lz_part(params, lz))
    parts += [_other_part(name, value) for name, value in others.items()]
    name = " + ".join(map(str, parts)) or "none"
    if len(parts) == 1 and parts[0].strength is not None:
        (part,) = parts
        return Variant(name, sent, part.kind + part.settings, part.strength)
    return Variant(name, sent, "", None)


def _lz_params(lz: dict[str, object]) -> LZParams:
    try:
        params = LZParams.parse(lz, LARGEST_MAX_WINDOW_SIZE)
    except ValueError as error:
        raise ValueError(f"--penalty: {error}") from None
    if params.penalty == 0:
        raise ValueError(f"--penalty: lz_penalty must be a number above 0 beside {', '.join(lz)}.")
    return params


def _lz_part(params: LZParams, lz: dict[str, object]) -> _Part:
    kind = "lz" if params.cost == "marginal" else f"lz {params.cost}"
    settings = "".join(
        f", {name.removeprefix('lz_').removesuffix('_size')} {lz[name]}"
        for name in LZ_FIELDS
        if name not in NAMED and lz.get(name) is not None
    )
    return _Part(kind, settings + ", prompt" * params.include_prompt, float(params.penalty))


def _other_part(name: str, value: object) -> _Part:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if name in COUNT_PENALTIES:
        low, high = COUNT_PENALTIES[name]
        if number is None or not math.isfinite(number) or not low <= number <= high:
            raise ValueError(
                f"--penalty: {name} must be a number in [{low:g}, {high:g}], got {value!r}."
            )
    kind = name.removesuffix("_penalty")
    return _Part(f"{kind} {value}", "", None) if number is None else _Part(kind, "", float(number))
