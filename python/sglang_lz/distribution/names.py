"""Finds names that a module uses but nothing defines, which a patch that applies may introduce.

Only the differences between a file with and without our patches are of interest, because a module
may legitimately use names that are defined only at run time.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.GeneratorExp)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp)


def undefined(source: str) -> set[str]:
    """Return ``function: name`` for each name that is undefined when a function uses it.

    These are global names that the module never binds, and local names that are bound only further
    down. Raises SyntaxError if ``source`` is not valid Python.
    """
    table = symtable.symtable(source, "<module>", "exec")
    found = set(_globals(table, _bound(table) | set(dir(builtins)) | {"__file__", "__path__"}))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            found |= {f"{node.name}: {name}" for name in _used_too_early(node)}
    return found


def _bound(table: symtable.SymbolTable) -> set[str]:
    """Names that are bound at module level, or with `global` in a function."""
    names = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    names |= {child.get_name() for child in table.get_children()}
    for child in table.get_children():
        names |= _declared_global(child)
    return names


def _declared_global(table: symtable.SymbolTable) -> set[str]:
    symbols = table.get_symbols()
    names = {s.get_name() for s in symbols if s.is_declared_global() and s.is_assigned()}
    return names.union(*map(_declared_global, table.get_children()))


def _globals(table: symtable.SymbolTable, bound: set[str]) -> Iterator[str]:
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if symbol.is_referenced() and symbol.is_global() and name not in bound:
            yield f"{table.get_name()}: {name}"
    for child in table.get_children():
        yield from _globals(child, bound)


def _used_too_early(function: Function) -> Iterator[str]:
    """Local names of a function that it reads on a line before the first one that binds them."""
    arguments = function.args
    known = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    known |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a}
    first_bound: dict[str, int] = {}
    first_read: dict[str, int] = {}
    for node in _own_nodes(function):
        if isinstance(node, ast.Global | ast.Nonlocal):
            known |= set(node.names)
        for name in _binds(node):
            line = getattr(node, "lineno", 0)
            first_bound[name] = min(line, first_bound.get(name, line))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            first_read[node.id] = min(node.lineno, first_read.get(node.id, node.lineno))
    for name in first_bound.keys() & first_read.keys() - known:
        if first_read[name] < first_bound[name]:
            yield name


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, except those of nested scopes, which have names of their own."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _SCOPES + _COMPREHENSIONS):
            todo.extend(ast.iter_child_nodes(node))


def _binds(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.ExceptHandler) and node.name:
        return [node.name]
    return []
