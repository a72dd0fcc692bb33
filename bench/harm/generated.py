"""Text of kinds that no package carries: logs, numbers, diagrams and enumerations; seeded.

It is written as such text is found: fields vary as they do in real logs, and diagrams have the
repetition that real ones have, which is the point of them.
"""

from __future__ import annotations

import calendar
import datetime
import json
import math
import random
from collections.abc import Callable, Iterator

_WORDS = (
    "account archive batch billing buffer cache catalog checkout client cluster config console "
    "contract customer delivery device document endpoint engine event export feature filter folder "
    "gateway history import index inventory invoice journal ledger library listener login manager "
    "message metric model monitor notice order parser payment pipeline policy portal printer queue "
    "reader record refund region render report request review router scanner schedule search "
    "segment sensor session shipment signal snapshot source stream summary supplier survey table "
    "target ticket token tracker transfer upload user vendor version volume warehouse worker"
)
WORDS = _WORDS.split()
LINES = 160
"""Of a log or a column."""


def logs(copies: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of logs, so many of each form."""
    yield from _each(copies, (_access, _system, _service, _json_lines, _tests, _build, _training))


def numbers(copies: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of columns of numbers, so many of each form."""
    forms = (_series, _integers, _measurements, _matrix, _sparse, _hexadecimal, _processes)
    yield from _each(copies, forms)


def diagrams(copies: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of rules and diagrams, so many of each form."""
    forms = (_sections, _flow, _tree, _bars, _calendar, _board, _header, _gantt, _boxed)
    yield from _each(copies, forms)


def enumerations(copies: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of numbered lines that differ in words too, so many of each form."""
    yield from _numbered(copies, _ENUMERATIONS)


def sequences(copies: int) -> Iterator[tuple[str, str]]:
    """Yield names and texts of lines that differ by little but numbers, so many of each form."""
    yield from _numbered(copies, _SEQUENCES)


def _each(
    copies: int, forms: tuple[Callable[[random.Random], str], ...]
) -> Iterator[tuple[str, str]]:
    for form in forms:
        for copy in range(copies):
            name = f"{form.__name__.strip('_')}-{copy}"
            yield name, form(random.Random(name))


def _times(rng: random.Random, seconds: float) -> Iterator[datetime.datetime]:
    """Yield moments that lie apart by an exponential distribution of this mean."""
    now = datetime.datetime(2026, rng.randint(1, 12), rng.randint(1, 28), rng.randint(0, 23))
    while True:
        now += datetime.timedelta(seconds=rng.expovariate(1 / seconds))
        yield now


def _address(rng: random.Random) -> str:
    return f"10.{rng.randint(0, 3)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}"


def _access(rng: random.Random) -> str:
    clients = [_address(rng) for _ in range(12)]
    paths = [f"/api/v1/{rng.choice(WORDS)}s" for _ in range(8)] + ["/", "/healthz", "/login"]
    agents = ("Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101", "curl/8.5.0", "probe/2.1")
    lines = []
    for moment, _ in zip(_times(rng, 2), range(LINES), strict=False):
        path = rng.choice(paths) + rng.choice(("", "", f"/{rng.randint(1, 9999)}", "?page=2"))
        status = rng.choices((200, 201, 304, 404, 500), (80, 6, 8, 5, 1))[0]
        method = rng.choice(("GET", "GET", "GET", "POST"))
        lines.append(
            f"{rng.choice(clients)} - - [{moment:%d/%b/%Y:%H:%M:%S} +0000] "
            f'"{method} {path} HTTP/1.1" {status} {rng.randint(120, 48000)} "-" '
            f'"{rng.choice(agents)}"'
        )
    return "\n".join(lines)


def _system(rng: random.Random) -> str:
    host = f"{rng.choice(WORDS)}-{rng.randint(1, 40):02d}"
    units = [f"{rng.choice(WORDS)}-{rng.choice(WORDS)}.service" for _ in range(6)]
    lines = []
    for moment, _ in zip(_times(rng, 20), range(LINES), strict=False):
        unit = rng.choice(units)
        message = rng.choice(
            (
                f"systemd[1]: Started {unit} - Run the {unit.split('.')[0]} job.",
                f"systemd[1]: {unit}: Deactivated successfully.",
                f"sshd[{rng.randint(900, 60000)}]: Accepted publickey for deploy from "
                f"{_address(rng)} port {rng.randint(30000, 65000)} ssh2",
                f"CRON[{rng.randint(900, 60000)}]: (root) CMD (run-parts /etc/cron.hourly)",
                f"kernel: [{rng.uniform(10, 90000):12.6f}] eth0: link becomes ready",
                f"dhclient[812]: DHCPACK of {_address(rng)} from {_address(rng)}",
            )
        )
        lines.append(f"{moment:%b %d %H:%M:%S} {host} {message}")
    return "\n".join(lines)


def _service(rng: random.Random) -> str:
    loggers = [f"app.{rng.choice(WORDS)}.{rng.choice(WORDS)}" for _ in range(7)]
    lines = []
    for moment, _ in zip(_times(rng, 0.4), range(LINES), strict=False):
        level = rng.choices(("INFO", "DEBUG", "WARNING", "ERROR"), (70, 20, 8, 2))[0]
        thing = rng.choice(WORDS)
        message = rng.choice(
            (
                f"{thing} {rng.randint(1000, 99999)} processed in {rng.uniform(1, 900):.1f} ms",
                f"retrying {thing}, attempt {rng.randint(2, 5)} of 5",
                f"cache miss for {thing}:{rng.getrandbits(32):08x}",
                f"connected to {_address(rng)}:{rng.choice((5432, 6379, 9092))}",
                f"{thing} queue has {rng.randint(0, 300)} entries",
                "heartbeat ok",
            )
        )
        stamp = f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"
        lines.append(f"{stamp} {level:7} [{rng.choice(loggers)}] {message}")
    return "\n".join(lines)


def _json_lines(rng: random.Random) -> str:
    services = rng.sample(WORDS, 4)
    records = [
        {
            "time": moment.isoformat(timespec="milliseconds") + "Z",
            "level": rng.choices(("info", "warn", "error"), (90, 8, 2))[0],
            "service": rng.choice(services),
            "event": f"{rng.choice(WORDS)}_{rng.choice(('created', 'read', 'deleted'))}",
            "trace": f"{rng.getrandbits(64):016x}",
            "duration_ms": round(rng.expovariate(1 / 40), 2),
        }
        for moment, _ in zip(_times(rng, 1), range(LINES // 2), strict=False)
    ]
    return "\n".join(map(json.dumps, records))


def _tests(rng: random.Random) -> str:
    lines = ["=" * 28 + " test session starts " + "=" * 29, f"collected {LINES} items", ""]
    done = 0
    while done < LINES:
        file = f"tests/unit/test_{rng.choice(WORDS)}.py"
        for _ in range(min(rng.randint(2, 14), LINES - done)):
            done += 1
            name = f"test_{rng.choice(WORDS)}_{rng.choice(('is', 'has', 'of'))}_{rng.choice(WORDS)}"
            result = rng.choices(("PASSED", "SKIPPED", "FAILED"), (95, 3, 2))[0]
            lines.append(f"{file}::{name} {result} [{100 * done // LINES:3d}%]")
    lines += ["", "=" * 24 + f" {done} passed in {rng.uniform(2, 90):.2f}s " + "=" * 24]
    return "\n".join(lines)


def _build(rng: random.Random) -> str:
    lines = []
    for step in range(1, LINES + 1):
        name = f"{rng.choice(WORDS)}/{rng.choice(WORDS)}_{rng.choice(WORDS)}"
        lines.append(f"[{step}/{LINES}] Building CXX object src/CMakeFiles/core.dir/{name}.cc.o")
        if rng.random() < 0.04:
            lines.append(
                f"/src/{name}.cc:{rng.randint(9, 900)}:{rng.randint(1, 80)}: warning: unused "
                f"variable '{rng.choice(WORDS)}' [-Wunused-variable]"
            )
    return "\n".join(lines)


def _training(rng: random.Random) -> str:
    lines = []
    for step in range(0, 10 * LINES, 10):
        loss = 2.1 + 6 * math.exp(-step / 400) + rng.gauss(0, 0.05)
        lines.append(
            f"step {step:6d} | loss {loss:.4f} | grad norm {rng.lognormvariate(0, 0.3):.3f} | "
            f"lr {3e-4 * min(1, step / 200):.2e} | {rng.gauss(51200, 300):,.0f} tok/s | "
            f"{rng.gauss(312, 2):.0f} ms"
        )
    return "\n".join(lines)


def _series(rng: random.Random) -> str:
    value = rng.uniform(10, 500)
    lines = []
    for _ in range(2 * LINES):
        value *= math.exp(rng.gauss(0, 0.02))
        lines.append(f"{value:.2f}")
    return "\n".join(lines)


def _integers(rng: random.Random) -> str:
    mean = rng.choice((0.5, 3, 40, 2000))
    return "\n".join(str(int(rng.expovariate(1 / mean))) for _ in range(2 * LINES))


def _measurements(rng: random.Random) -> str:
    columns = rng.randint(3, 7)
    lines = ["".join(f"{word[:10]:>12}" for word in rng.sample(WORDS, columns))]
    lines += [
        "".join(f"{rng.gauss(0, 10**column):12.4f}" for column in range(columns))
        for _ in range(LINES)
    ]
    return "\n".join(lines)


def _matrix(rng: random.Random) -> str:
    size = rng.randint(8, 14)
    rows = [[rng.gauss(0, 1) for _ in range(size)] for _ in range(2 * size)]
    return "[" + "\n ".join(f"[{' '.join(f'{x:7.4f}' for x in row)}]" for row in rows) + "]"


def _sparse(rng: random.Random) -> str:
    size = rng.randint(10, 24)
    share = rng.choice((0.05, 0.15, 0.4))
    rows = [["1" if rng.random() < share else "0" for _ in range(size)] for _ in range(size)]
    return "\n".join(" ".join(row) for row in rows)


def _hexadecimal(rng: random.Random) -> str:
    data = bytearray(rng.randbytes(16 * 40))
    for _ in range(6):  # as files have them: runs of zeros, and words
        start, zeros = rng.randrange(len(data) - 64), rng.randint(8, 48)
        data[start : start + zeros] = bytes(zeros)
        word, start = rng.choice(WORDS).encode(), rng.randrange(len(data) - 64)
        data[start : start + len(word)] = word
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        octets = " ".join(f"{byte:02x}" for byte in row)
        lines.append(f"{start:08x}  {octets[:23]}  {octets[24:]}  |{text}|")
    return "\n".join(lines)


def _processes(rng: random.Random) -> str:
    lines = ["    PID USER      %CPU %MEM    VSZ   RSS STAT    TIME COMMAND"]
    for _ in range(LINES // 2):
        lines.append(
            f"{rng.randint(1, 99999):7d} {rng.choice(('root', 'www', 'db')):8} "
            f"{rng.choice((0, 0, 0, rng.uniform(0, 90))):5.1f} {rng.uniform(0, 4):4.1f} "
            f"{rng.randint(0, 900000):6d} {rng.randint(0, 90000):5d} {rng.choice('SRSD'):4} "
            f"{rng.randint(0, 99):4d}:{rng.randint(0, 59):02d} {rng.choice(WORDS)}"
        )
    return "\n".join(lines)


def _sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words)).capitalize() + "."


def _sections(rng: random.Random) -> str:
    rule, under = rng.choice("=-*#~_"), rng.choice("=-~^")
    width = rng.choice((40, 60, 72, 79, 80, 100))
    parts = []
    for number in range(1, 13):
        title = f"{number}. {rng.choice(WORDS).capitalize()} and {rng.choice(WORDS)}"
        parts += [rule * width, title, rule * width, ""]
        for _ in range(rng.randint(1, 3)):
            parts += [_sentence(rng, rng.randint(6, 30)), ""]
        heading = f"{rng.choice(WORDS).capitalize()} {rng.choice(WORDS)}"
        parts += [heading, under * len(heading), "", _sentence(rng, rng.randint(10, 40)), ""]
    return "\n".join(parts)


def _flow(rng: random.Random) -> str:
    parts = []
    for _ in range(5):
        names = [rng.choice(WORDS) for _ in range(rng.randint(2, 4))]
        edge = "  ".join("+" + "-" * (len(name) + 2) + "+" for name in names)
        middle = "->".join(f"| {name} |" for name in names)
        parts += [edge, middle, edge, "   |", "   v"]
        if rng.random() < 0.5:
            parts += [_sentence(rng, 12), ""]
    return "\n".join(parts)


def _tree(rng: random.Random) -> str:
    lines = ["."]

    def grow(prefix: str, depth: int) -> None:
        children = rng.randint(2, 6)
        for child in range(children):
            last = child == children - 1
            is_folder = depth < 3 and rng.random() < 0.45
            name = rng.choice(WORDS) + ("" if is_folder else rng.choice((".py", ".md", ".json")))
            lines.append(f"{prefix}{'└── ' if last else '├── '}{name}")
            if is_folder:
                grow(prefix + ("    " if last else "│   "), depth + 1)

    grow("", 0)
    return "\n".join(lines)


def _bars(rng: random.Random) -> str:
    mark = rng.choice("#*█=")
    shares = [rng.betavariate(1, 2) for _ in range(24)]
    return "\n".join(
        f"{rng.choice(WORDS):>12} | {mark * round(60 * share):60} {100 * share:5.1f} %"
        for share in shares
    )


def _calendar(rng: random.Random) -> str:
    return calendar.TextCalendar().formatyear(rng.randint(1990, 2040), m=rng.choice((1, 2, 3)))


def _board(rng: random.Random) -> str:
    parts = []
    for number in range(1, 5):
        size = rng.choice((3, 8, 9))
        share = rng.choice((0.2, 0.5))
        letters = {3: "XO", 8: "rnbqkpRNBQKP", 9: "123456789"}[size]
        cells = [rng.choice(letters) if rng.random() < share else "." for _ in range(size**2)]
        rows = [cells[start : start + size] for start in range(0, size**2, size)]
        if rng.random() < 0.5:
            rule = "+" + "---+" * size
            drawn = [f"{rule}\n| {' | '.join(row)} |" for row in rows] + [rule]
        else:
            drawn = [" ".join(row) for row in rows]
        parts += [f"Position {number}:", "", *drawn, "", _sentence(rng, 14), ""]
    return "\n".join(parts)


def _header(rng: random.Random) -> str:
    rule = "+-" * 32 + "+"
    lines = [
        " 0                   1                   2                   3",
        " " + " ".join(str(bit % 10) for bit in range(32)),
        rule,
    ]
    for _ in range(rng.randint(4, 8)):
        bits = rng.choice(((32,), (16, 16), (8, 8, 16), (4, 4, 8, 16)))
        widths = [2 * count - 1 for count in bits]
        fields = [rng.choice(WORDS)[:width].center(width) for width in widths]
        lines += [f"|{'|'.join(fields)}|", rule]
    return "\n".join([*lines, "", _sentence(rng, 40)])


def _gantt(rng: random.Random) -> str:
    lines = ["task          " + "".join(f"{month:<6}" for month in calendar.month_abbr[1:])]
    for _ in range(16):
        start, length = rng.randint(0, 50), rng.randint(3, 22)
        row = "." * start + "=" * min(length, 72 - start)
        lines.append(f"{rng.choice(WORDS):<14}{row:.<72}")
    return "\n".join(lines)


def _boxed(rng: random.Random) -> str:
    parts = []
    for _ in range(6):
        lines = [_sentence(rng, rng.randint(3, 9)) for _ in range(rng.randint(1, 5))]
        width = max(map(len, lines))
        top, bottom = f"┌{'─' * (width + 2)}┐", f"└{'─' * (width + 2)}┘"
        parts += [top, *(f"│ {line:<{width}} │" for line in lines), bottom, _sentence(rng, 9), ""]
    return "\n".join(parts)


def _numbered(copies: int, forms: dict[str, _Line]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of 700 to 6,000 characters, whose lines are numbered."""
    for form, line in forms.items():
        for copy in range(copies):
            rng = random.Random(f"{form}-{copy}")
            number, size, own, text = rng.choice((1, 1, 8, 95)), rng.randint(700, 5500), _w(rng), ""
            while len(text) < size:
                text, number = text + line(number, rng, own) + "\n", number + 1
            yield f"{form}-{copy}", text[:6000]


def _w(rng: random.Random) -> str:
    return rng.choice(WORDS)


def _collatz(number: int, rng: random.Random, own: str) -> str:
    lines = [f"Start with {number}."]
    while number > 1:
        step = f"odd: 3 * {number} + 1" if number % 2 else f"even: {number} / 2"
        after = 3 * number + 1 if number % 2 else number // 2
        lines.append(f"{number} is {step} = {(number := after)}.")
    return "\n".join([*lines, ""])


_Line = Callable[[int, random.Random, str], str]
"""Makes a line, or a few, of its number, a generator and a word that all lines share."""
_ENUMERATIONS: dict[str, _Line] = {
    "tests": lambda n, rng, own: (
        f"def test_{n}_{_w(rng)}_is_{_w(rng)}() -> None:\n"
        f'    assert {own}("{_w(rng)}", {n}) == {rng.randint(0, 999)}\n'
    ),
    "migrations": lambda n, rng, own: (
        f"-- {n:04d}_add_{(column := _w(rng))}\nALTER TABLE {_w(rng)} ADD COLUMN {column}_id "
        f"INTEGER NOT NULL DEFAULT 0;\nUPDATE {own}_version SET version = {n};\n"
    ),
    "cases": lambda n, rng, own: f'        case {n}:\n            return "{_w(rng)}";',
    "constants": lambda n, rng, own: f"#define {own.upper()}_{_w(rng).upper()} {n}",
    "inserts": lambda n, rng, own: (
        f"INSERT INTO {own} (id, name, kind, amount) VALUES ({n}, '{_w(rng)} {_w(rng)}', "
        f"'{rng.choice(('open', 'closed'))}', {rng.uniform(1, 900):.2f});"
    ),
    "rows": lambda n, rng, own: (
        f'{{"id": {n}, "{own}": "{_w(rng)}", "count": {rng.randint(0, 99)}}}'
    ),
    "counters": lambda n, rng, own: (  # most say the same, as those of real batches do
        f"INFO {own}: wrote batch {n} of the nightly import to the archive, "
        f"{rng.choices(('done', 'skipped', 'retried once'), (85, 9, 6))[0]}"
    ),
    "items": lambda n, rng, own: f'<li id="{own}-{n}"><a href="#{n}">{_w(rng)} {_w(rng)}</a></li>',
    "changelog": lambda n, rng, own: (
        f"## {n // 10}.{n % 10}.0\n\n- Fix the {_w(rng)} of the {_w(rng)} (#{rng.randint(1, 9999)})"
        f"\n- Add a {_w(rng)} to the {own}\n"
    ),
    "steps": lambda n, rng, own: f"{n}. Open the {_w(rng)} and check its {_w(rng)}.",
    "verses": lambda n, rng, own: f"{n} {_sentence(rng, rng.randint(6, 20))}",
    "scenes": lambda n, rng, own: f"Act {n // 5 + 1}, Scene {n % 5 + 1}. {own}, {_w(rng)}.",
    "chapters": lambda n, rng, own: f"Chapter {n}: The {_w(rng).title()} ..... {9 * n + len(own)}",
    "arithmetic": lambda n, rng, own: (
        f"Step {n}: {(a := rng.randint(1, 99))} for the {_w(rng)} and {(b := rng.randint(1, 99))} "
        f"for the {_w(rng)} make {a + b}."
    ),
}
_SEQUENCES: dict[str, _Line] = {
    "squares": lambda n, rng, own: f"The square of {n} is {n * n}.",
    "primes": lambda n, rng, own: (
        f"{n + 1} is {'prime' if all((n + 1) % d for d in range(2, n + 1)) else 'not prime'}."
    ),
    "collatz": _collatz,
    "multiplication": lambda n, rng, own: f"| {n} | times | {len(own)} | is | {n * len(own)} |",
    "counting": lambda n, rng, own: (
        f"{n} barrels of {own} on the wall, take one down, pass it round"
    ),
    "bare chapters": lambda n, rng, own: f"Chapter {n} of the {own} ...... page {11 * n}",
    "pages": lambda n, rng, own: f'<li class="page"><a href="/{own}?page={n}">Page {n}</a></li>',
    "progress": lambda n, rng, own: f"INFO {own}: batch {n} done",
}
