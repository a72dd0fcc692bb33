"""Compares what our code uses of upstream with a release's sources, without importing either.

This finds names that another upstream release has and this one lacks. Names that neither release
has are ignored, because they may come from elsewhere. A name in a string, as in
``getattr(req, "name", None)``, does not count as a use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

Sources = Callable[[str], bytes | None]
Function = ast.FunctionDef | ast.AsyncFunctionDef

_DEFINED = re.compile(
    rb"\b(?:def|class)[ ]+(\w+)"  # functions and classes
    rb"|^[ ]*(?:self\.)?(\w+)[ ]*[:=]"  # variables, fields and attributes
    rb"|\.(\w+)[ ]*=",  # attributes of other objects
    re.M,
)
SERVING = "sglang/srt/"
"""The part of upstream that serves requests; we ignore names from its other parts."""


@dataclass
class Uses:
    """The names that our files use: imports, attributes and calls.

    Attributes that our own files define may be ours, and attributes of other packages' modules are
    not upstream's, so both are ignored.
    """

    imports: set[tuple[str, str]] = field(default_factory=set)
    """(module, name in it)"""
    attributes: dict[str, str] = field(default_factory=dict)
    """name to the first file that has it"""
    own: set[str] = field(default_factory=set)
    """names that our files define"""
    calls: dict[tuple[str, str], set[tuple[int, tuple[str, ...]]]] = field(default_factory=dict)
    """(module, name) to (number of positional arguments, names of the others)"""

    def read(self, file: str, source: str) -> None:
        """Add the uses of one file."""
        tree = ast.parse(source)
        self.own |= _defined(source.encode())
        local: dict[str, tuple[str, str]] = {}
        foreign: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and _is_foreign(node):
                foreign |= set(_names(node))
            elif isinstance(node, ast.ImportFrom) and _is_upstream(node.module):
                for alias in node.names:
                    local[alias.asname or alias.name] = (str(node.module), alias.name)
            elif isinstance(node, ast.Import):
                self.imports |= {(a.name, "") for a in node.names if _is_upstream(a.name)}
        self.imports |= set(local.values())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                of = node.value
                if not (isinstance(of, ast.Name) and of.id in foreign):
                    self.attributes.setdefault(node.attr, file)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id not in local or _is_open(node):
                    continue
                names = tuple(sorted(str(keyword.arg) for keyword in node.keywords))
                self.calls.setdefault(local[node.func.id], set()).add((len(node.args), names))


def _is_upstream(module: str | None) -> bool:
    return module is not None and (module == "sglang" or module.startswith("sglang."))


def _is_foreign(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is from a package that is neither upstream's nor ours."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    else:
        modules = [node.module or ""] if node.level == 0 else ["sglang_lz"]
    return not any(module.split(".")[0] in ("sglang", "sglang_lz") for module in modules)


def _is_open(call: ast.Call) -> bool:
    return any(isinstance(a, ast.Starred) for a in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )


class Release:
    """The sources of one upstream release."""

    def __init__(self, names: Iterable[str], read: Sources) -> None:
        self._names = {name for name in names if name.endswith(".py")}
        self._read = read
        self._trees: dict[str, ast.Module] = {}

    @cached_property
    def defined(self) -> set[str]:
        """All module names, and all names that files bind: functions, fields and variables."""
        found: set[str] = set()
        for name in self._names:
            if not name.startswith(SERVING):
                continue
            found |= {*name.removesuffix(".py").split("/"), *_defined(self._read(name) or b"")}
        return found

    def file(self, module: str) -> str | None:
        """The path of a module; None if there is none."""
        path = module.replace(".", "/")
        return next((n for n in (f"{path}.py", f"{path}/__init__.py") if n in self._names), None)

    def lookup(self, module: str, name: str) -> list[ast.AST] | None:
        """The nodes that bind a name in a module; None if none do, empty for the module itself."""
        file = self.file(module)
        if file is None:
            return None
        if not name or self.file(f"{module}.{name}"):
            return []
        if file not in self._trees:
            self._trees[file] = ast.parse(self._read(file) or b"")
        return [node for node in ast.walk(self._trees[file]) if name in _names(node)] or None

    def accepts(self, module: str, name: str, call: tuple[int, tuple[str, ...]]) -> bool:
        """Whether a function or class accepts a call; true if that cannot be determined."""
        nodes = self.lookup(module, name) or []
        kinds = [n for n in nodes if isinstance(n, Function | ast.ClassDef)]
        return not kinds or any(_fits(node, *call) for node in kinds)


def missing(uses: Uses, release: Release, other: Release) -> Iterator[str]:
    """Yield what our code uses that ``other`` has but ``release`` does not."""
    for module, name in sorted(uses.imports):
        if other.lookup(module, name) is not None and release.lookup(module, name) is None:
            yield f"{module} has no {name}" if name else f"there is no module {module}"
    for (module, name), calls in sorted(uses.calls.items()):
        for call in sorted(calls):
            if other.accepts(module, name, call) and not release.accepts(module, name, call):
                yield f"{module}.{name} cannot be called with {_describe(call)}"
    gone = (uses.attributes.keys() - uses.own) & other.defined - release.defined
    for name in sorted(gone):
        yield f"nothing has the attribute {name}, which {uses.attributes[name]} reads"


def _defined(source: bytes) -> set[str]:
    words = (word for match in _DEFINED.finditer(source) for word in match.groups() if word)
    return {word.decode() for word in words}


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, Function | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return []


def _fits(node: Function | ast.ClassDef, positional: int, keywords: tuple[str, ...]) -> bool:
    own = 0
    if isinstance(node, ast.ClassDef):
        made = [n for n in node.body if isinstance(n, Function) and n.name == "__init__"]
        if not made:
            return True  # a dataclass, or an inherited constructor
        node, own = made[0], 1
    args = node.args
    names = [a.arg for a in (*args.posonlyargs, *args.args)][own:]
    if positional > len(names) and not args.vararg:
        return False
    by_name = {*names[positional:], *(a.arg for a in args.kwonlyargs)}
    if not args.kwarg and not set(keywords) <= by_name:
        return False
    required = names[: len(names) - len(args.defaults)][positional:]
    required += [a.arg for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None]
    return set(required) <= set(keywords)


def _describe(call: tuple[int, tuple[str, ...]]) -> str:
    positional, keywords = call
    return f"{positional} positional arguments and {', '.join(keywords) or 'none by name'}"
