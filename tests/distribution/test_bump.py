"""`bump`: the patches carried to another upstream release, and held against it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distribution.world import CALL, PYTHON, TAGS, UPSTREAM, World, git, write_upstream_wheel
from sglang_lz.distribution import fetch
from sglang_lz.distribution.carry import Change, merge
from sglang_lz.distribution.lock import ARCHES, PYTHONS, Lock
from sglang_lz.distribution.names import undefined
from sglang_lz.distribution.uses import Release, Uses, missing

pytestmark = pytest.mark.slow

SAMPLER = "sglang/sampler.py"


def files_of(version: str) -> dict[str, str]:
    numbers = f"({version.replace('.', ', ')})"
    return {
        path.replace("0.5.23", version): text.replace("0.5.23", version).replace(
            "(0, 5, 23)", numbers
        )
        for path, text in UPSTREAM.items()
    }


def release(world: World, version: str, **changed: tuple[str, str]) -> None:
    """Write the six platform wheels of an upstream release.

    Args:
        changed: by a module's name, what is replaced in it, and by what.
    """
    files = files_of(version)
    for module, (before, after) in changed.items():
        assert before in files[f"sglang/{module}.py"]
        files[f"sglang/{module}.py"] = files[f"sglang/{module}.py"].replace(before, after)
    for python in PYTHONS:
        for arch in ARCHES:
            name = f"sglang-{version}-{python}-{python}-manylinux_2_34_{arch}.whl"
            write_upstream_wheel(world.wheel.with_name(name), files)


def stops(world: World, *arguments: object) -> str:
    """Run `bump`, which must leave something to a person; return what it prints."""
    done = world.run("bump", *arguments)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def set_of(world: World, version: str) -> Path:
    return world.checkout / "patches" / version


@pytest.mark.parametrize("version", [pytest.param("0.5.9", marks=pytest.mark.full), "0.6.0"])
def test_lines_that_moved(world: World, version: str) -> None:
    """Forwards and backwards: git carries what only moved, and all of it is checked and built."""
    release(world, version, sampler=("line_0 = 0\n", "first = 0\nline_0 = 0\n"))
    out = world.ok("bump", version, "--tree", "new")
    assert out.count("clean  ") == 5
    assert f"patches/{version} is written. Next:" in out
    text = (set_of(world, version) / "sampling/call.patch").read_text()
    assert "@@ -9,6 +9,8 @@" in text
    lock = Lock.load(set_of(world, version) / "upstream.lock")
    assert (lock.version, lock.revision, len(lock.wheels)) == (version, 1, 6)
    for pin in lock.wheels:
        fetch.verify(world.cache / pin.filename, pin)
    assert not world.patches.exists()
    world.ok("check")
    wheel = world.root / world.ok("build").strip()
    assert wheel.name == f"sglang-{version}+lz1-{TAGS}.whl"
    world.ok("doctor", path=world.site(wheel, "built"))
    assert "the patches are for" in world.fails("apply", world.site())


@pytest.mark.full
def test_lines_beside_ours(world: World) -> None:
    """Upstream's new line at the place of ours comes first, and the place is named."""
    release(
        world,
        "0.5.24",
        sampler=("line_10 = 10\n", "line_10 = 11\n"),
        fields=("    top_p = 1.0\n", "    top_p = 1.0\n    top_k = 1\n"),
    )
    out = world.ok("bump", "0.5.24", "--tree", "new")
    assert re.search(r"^beside +sampling/call.patch +python/sglang/sampler.py:11$", out, re.M)
    assert re.search(r"^beside +requests/field.patch +python/sglang/fields.py:5$", out, re.M)
    assert (
        (world.root / "new/python/sglang/fields.py")
        .read_text()
        .endswith("    top_p = 1.0\n    top_k = 1\n    lz = 0.0\n")
    )
    sampler = (world.root / "new/python/sglang/sampler.py").read_text()
    assert f"line_9 = 9\n{CALL}line_10 = 11\n" in sampler
    world.ok("check")


CONFLICT = {"kernel": ("import sgl_kernel\n", "import sgl_kernel as kernel\n")}


@pytest.mark.full
def test_a_conflict_that_a_person_settles(world: World) -> None:
    release(world, "0.5.24", **CONFLICT)
    out = stops(world, "0.5.24", "--tree", "new")
    assert re.search(r"^conflict +cpu/stand-in.patch +python/sglang/kernel.py$", out, re.M)
    assert "sglang-lz bump 0.5.24 --continue --tree new" in out
    assert not set_of(world, "0.5.24").exists()
    assert "is not settled" in world.fails("bump", "0.5.24", "--continue", "--tree", "new")
    tree = world.root / "new"
    text = UPSTREAM["sglang/kernel.py"].replace("sgl_kernel\n", "sgl_kernel as kernel  # ours\n", 1)
    (tree / "python/sglang/kernel.py").write_text(text)
    git(tree, "add", "--all")
    world.ok("bump", "0.5.24", "--continue", "--tree", "new")
    world.ok("check")


@pytest.mark.full
def test_a_patch_that_the_release_does_not_need(world: World) -> None:
    release(world, "0.5.24", **CONFLICT)
    stops(world, "0.5.24", "--tree", "new")
    world.ok("bump", "0.5.24", "--continue", "--tree", "new", "--skip")
    series = (set_of(world, "0.5.24") / "series").read_text()
    assert series.startswith("sampling/call.patch\n")
    assert "cpu/stand-in.patch" not in series
    world.ok("check")


@pytest.mark.full
def test_a_change_that_upstream_has_made_too(world: World) -> None:
    release(world, "0.5.24", fields=("    top_p = 1.0\n", "    top_p = 1.0\n    lz = 0.0\n"))
    out = world.ok("bump", "0.5.24", "--tree", "new")
    assert re.search(r"^there already +requests/field.patch$", out, re.M)
    series = (set_of(world, "0.5.24") / "series").read_text()
    assert "requests/field.patch" not in series


@pytest.mark.full
def test_a_file_that_is_gone(world: World) -> None:
    release(world, "0.5.24")
    for wheel in world.wheel.parent.glob("*0.5.24*"):
        files = files_of("0.5.24")
        del files["sglang/kernel.py"]
        write_upstream_wheel(wheel, files)
    out = stops(world, "0.5.24", "--tree", "new")
    assert re.search(r"^conflict +cpu/stand-in.patch +python/sglang/kernel.py$", out, re.M)
    world.ok("bump", "0.5.24", "--continue", "--tree", "new", "--skip")


@pytest.mark.full
def test_clean_but_a_name_is_missing(world: World) -> None:
    """The patch calls what the release binds only inside a function."""
    before = "import sgl_kernel\n\n\ndef run():\n    return sgl_kernel.run()\n"
    after = "\n\ndef run():\n    import sgl_kernel\n\n    return sgl_kernel.run()\n"
    tree = world.root / "tree"
    world.ok("checkout", "--wheel", world.wheel, tree)
    text = (tree / "python/sglang/kernel.py").read_text()
    (tree / "python/sglang/kernel.py").write_text(text + "\n\ndef ours():\n    return sgl_kernel\n")
    git(tree, "commit", "-qa", "--amend", "--no-edit")
    world.ok("export", tree)
    release(world, "0.5.24", kernel=(before, after))
    assert "conflict" in stops(world, "0.5.24", "--tree", "new")
    new = world.root / "new"
    (new / "python/sglang/kernel.py").write_text(f"{after}\n\ndef ours():\n    return sgl_kernel\n")
    git(new, "add", "--all")
    out = stops(world, "0.5.24", "--continue", "--tree", "new")
    assert "python/sglang/kernel.py: sgl_kernel is not defined where ours uses it" in out
    assert not set_of(world, "0.5.24").exists()


@pytest.mark.full
def test_names_that_the_release_lacks_are_reported(world: World) -> None:
    (world.package / "reads.py").write_text(
        "from sglang.srt.server_args import ServerArgs\n"
        "def read(x):\n    return x.model_path, getattr(x, 'algorithms', None)\n"
    )
    gone = ("class ServerArgs:\n    model_path: str\n", "class Args:\n    path: str\n")
    release(world, "0.5.24", **{"srt/server_args": gone})
    out = world.ok("bump", "0.5.24", "--tree", "new")
    assert "our code: sglang.srt.server_args has no ServerArgs\n" in out
    assert "nothing has the attribute model_path, which python/sglang_lz/reads.py reads\n" in out
    assert "algorithms" not in out
    assert "argument path is new: judge it, then add it to patches/0.5.24/judged\n" in out
    assert (set_of(world, "0.5.24") / "judged").read_text() == "algorithm NGRAM\n"


@pytest.mark.full
def test_dry_run_changes_nothing(world: World) -> None:
    release(world, "0.5.24", **CONFLICT)
    before = {path.name for path in world.root.iterdir()}
    out = stops(world, "0.5.24", "--dry-run")
    assert "0.5.23 to 0.5.24: 4 clean, 1 conflict\n" in out
    assert {path.name for path in world.root.iterdir()} == before
    assert not set_of(world, "0.5.24").exists()
    release(world, "0.5.25")
    assert "0.5.23 to 0.5.25: 5 clean\n" in world.ok("bump", "0.5.25", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("9.9.9",), "pip could not download sglang 9.9.9"),
        (("9.9.9", "--dry-run"), "pip could not download sglang 9.9.9"),
        (("../x",), "'../x' is not a release of upstream"),
        (("0.5.23",), "The patches are for sglang 0.5.23 already"),
        (("0.5.24", "--continue"), "is not where `sglang-lz bump 0.5.24` stopped"),
        (("0.5.24", "--skip"), "--skip goes with --continue"),
        (("0.5.24", "--continue", "--dry-run"), "leave one of the two out"),
    ],
)
def test_refusals(world: World, arguments: tuple[str, ...], words: str) -> None:
    assert words in world.fails("bump", *arguments)


def lines(text: str) -> list[bytes]:
    return [f"{word}\n".encode() for word in text.split()]


@pytest.mark.parametrize(
    ("theirs", "ours", "result"),
    [
        ((1, 2, "B"), (2, 2, "x"), "a B x c d"),
        ((2, 2, "B"), (1, 2, "x"), "a x B c d"),
        ((1, 1, "B"), (1, 1, "x"), "a B x b c d"),
        ((1, 1, "B"), (1, 2, "x"), "a B x c d"),
        ((1, 2, "B"), (1, 1, "x"), "a x B c d"),
        ((0, 4, ""), (4, 4, "x"), "x"),
        ((1, 3, "B"), (2, 2, "x"), None),
        ((1, 2, "B"), (1, 2, "x"), None),
        ((0, 4, ""), (2, 3, "x"), None),
    ],
)
def test_changes_beside_each_other(
    theirs: tuple[int, int, str], ours: tuple[int, int, str], result: str | None
) -> None:
    changes = [Change(start, end, tuple(lines(text))) for start, end, text in (theirs, ours)]
    merged = merge(lines("a b c d"), changes[:1], changes[1:])
    assert (merged and merged[0]) == (None if result is None else lines(result))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f():\n    return len(x)\n", {"f: x"}),
        ("x = 1\ndef f():\n    return x\n", set()),
        ("def f():\n    y = x\n    import x\n", {"f: x"}),
        ("def f():\n    import x\n    return [x for _ in x]\n", set()),
        ("def f():\n    global x\n    x = 1\ndef g():\n    return x\n", set()),
        ("def f(x, *y, z=1, **w):\n    x, y, z, w = x, y, z, w\n", set()),
        ("def f():\n    def g():\n        return x\n    x = 1\n    return g\n", set()),
        ("class A:\n    def f(self):\n        return y\n", {"f: y"}),
    ],
)
def test_undefined_names(source: str, names: set[str]) -> None:
    assert undefined(source) == names


@pytest.mark.parametrize(
    ("there", "here", "problem"),
    [
        ("def f(a, b=1): ...", "def f(a, *, b=1): ...", None),
        ("def f(a, b=1): ...", "def f(a): ...", "f cannot be called with 1 positional"),
        ("def f(a, b=1): ...", "def f(a, c, b=1): ...", "f cannot be called with"),
        ("def f(a, b=1): ...", "def f(*a, **b): ...", None),
        ("def f(a, b=1): ...", "f = None", None),
        ("def f(a, b=1): ...", "def g(a, b=1): ...", "sglang.srt.m has no f"),
        (
            "class f:\n  def __init__(self, a, b): ...",
            "class f:\n  def __init__(self, a): ...",
            "f cannot",
        ),
        ("def f(a, *, b): ...", "", "sglang.srt.m has no f"),
    ],
)
def test_calls_that_do_not_fit_the_release(there: str, here: str, problem: str | None) -> None:
    uses = Uses()
    uses.read("ours.py", "def call(x):\n    from sglang.srt.m import f\n    return f(x, b=2)\n")

    def one(text: str) -> Release:
        return Release(["sglang/srt/m.py"], lambda _: text.encode())

    found = list(missing(uses, one(here), one(there)))
    assert len(found) == (problem is not None), found
    assert problem is None or problem in found[0]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import m\nm.gone", False),
        ("import sglang.srt.m as m\nm.gone", True),
        ("from m import x as y\ny.gone", False),
        ("from m import x\nx.y.gone", True),
        ("from sglang.srt import m\nm.gone", True),
        ("from . import m\nm.gone", True),
        ("from sglang_lz import m\nm.gone", True),
        ("def f(m): return m.gone", True),
        ("def f(x): return x.m", False),
    ],
)
def test_attributes_that_a_release_lacks(source: str, found: bool) -> None:
    uses = Uses()
    uses.read("ours.py", source)

    def one(text: str) -> Release:
        return Release(["sglang/srt/m.py"], lambda _: text.encode())

    names = list(missing(uses, one(""), one("gone = 1\nm = 2")))
    assert names == ["nothing has the attribute gone, which ours.py reads"] * found


def test_pin_is_of_every_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(version: str, python: str, arch: str, folder: Path) -> Path:
        file = folder / f"sglang-{version}-{python}-{python}-manylinux_2_34_{arch}.whl"
        file.write_text(file.name)
        return file

    monkeypatch.setattr(fetch, "download", download)
    lock = fetch.pin_version("0.5.24", tmp_path, print)
    assert lock.revision == 1
    assert [(w.python, w.arch) for w in lock.wheels] == [(p, a) for p in PYTHONS for a in ARCHES]
    for wheel in lock.wheels:
        fetch.verify(tmp_path / wheel.filename, wheel)
    (tmp_path / "lock").write_text(lock.dump())
    assert Lock.load(tmp_path / "lock") == lock
    assert lock.select(PYTHON).python == PYTHON
