"""The picture of a result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harm.result import COUNTING, cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Hues of Okabe and Ito and of Tol, told apart with any colour vision; markers say the same again.
LOOKS = {
    COUNTING: ("#d55e00", "s"),
    "frequency 0.1": ("#aa4499", "D"),
    "presence 0.5": ("#8a7000", "v"),
    "DRY": ("#882255", "^"),
    "lz 0.15": ("#56b4e9", "o"),
    "lz 0.15, onset 3": ("#0072b2", "o"),
}
LABELS = {
    COUNTING: "repetition, frequency or presence, any strength",
    "lz 0.15": "LZ 0.15, always on",
    "lz 0.15, onset 3": "LZ 0.15, onset 3",
}
PANELS = (
    (
        "lowered per 1000",
        "positions of 1,000 where the true next token is lowered",
        (COUNTING, "lz 0.15", "DRY", "lz 0.15, onset 3"),
        (0, 1, 10, 100, 1000),
        1.0,
    ),
    (
        "nats a token",
        "nats taken from the true next token, mean",
        ("frequency 0.1", "presence 0.5", "lz 0.15", "DRY", "lz 0.15, onset 3"),
        (0, 0.01, 0.1, 1, 10),
        0.01,
    ),
)


def draw(result: dict[str, Any], out: Path) -> None:
    """Draw both measures of the first tokenizer over the kinds of text."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    longest = max(result["settings"]["longest"])
    tokenizer = next(iter(result["vocabularies"]))
    own = cells(result, tokenizer, longest)
    kinds = list(dict.fromkeys(kind for kind, _ in own))
    figure, both = plt.subplots(1, 2, figsize=(11, 6), constrained_layout=True, sharey=True)
    for axes, (measure, title, names, ticks, linear) in zip(both, PANELS, strict=True):
        for name in names:
            colour, marker = LOOKS[name]
            axes.plot(
                [own[kind, name][measure] for kind in kinds],
                range(len(kinds)),
                marker,
                color=colour,
                ms=11 if name.endswith("onset 3") else 8,
                label=LABELS.get(name, name),
                clip_on=False,
                zorder=2 if name.endswith("onset 3") else 3,
            )
        _scale(axes, title, ticks, linear)
    both[0].set_yticks(range(len(kinds)), kinds, fontsize=12)
    both[0].invert_yaxis()
    handles = dict(
        pair[::-1] for axes in both for pair in zip(*axes.get_legend_handles_labels(), strict=True)
    )
    figure.legend(
        handles.values(), handles, loc="outside lower center", ncols=3, frameon=False, fontsize=11
    )
    figure.suptitle(
        "How often each penalty lowers the correct next token: "
        f"outputs of up to {longest:,} tokens, {tokenizer} tokenizer",
        fontsize=13,
    )
    figure.savefig(out, dpi=120)


def _scale(axes: Axes, title: str, ticks: tuple[float, ...], linear: float) -> None:
    """Set a logarithmic axis that has a zero."""
    axes.set_xscale("symlog", linthresh=linear, linscale=0.6)
    axes.set_xlim(0, ticks[-1] * 2)
    axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks], fontsize=11)
    axes.minorticks_off()
    axes.set_xlabel(title, fontsize=12)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
