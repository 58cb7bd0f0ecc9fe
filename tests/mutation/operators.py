"""What a mutation does to an expression: the slips that turn a right formula into a wrong one."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_PAIRS = (
    "min max, minimum maximum, amin amax, argmin argmax, any all, sum mean, std var, zeros ones, "
    "zeros_like ones_like, log log1p, sqrt square, rsqrt sqrt, ceil floor, cumsum cumprod, rint floor"
)
CALLS = {a: b for pair in _PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
NUMBERS = {"float", "Tensor", "Scores", "NDArray[np.float64]"}
"""Results that are turned round; any other becomes None."""
NOT_COMPUTED = {"annotation", "returns", "decorator_list", "type_comment"}


class Mutant(NamedTuple):
    """One changed statement."""

    lines: range
    """Of the statement; of a compound one, of its head."""
    before: str
    after: str
    source: str
    """Of the whole file."""


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a file; texts of messages, docstrings and annotations are left alone."""
    tree = ast.parse(source)
    for holder, key, new, statement in _places(tree):
        old, before = holder[key], _shown(statement)
        holder[key] = new
        after, mutated = _shown(statement), ast.unparse(tree)
        holder[key] = old
        yield Mutant(_lines(statement), before, after, mutated)


def _places(tree: ast.Module) -> Iterator[tuple[Any, Any, ast.AST, ast.stmt]]:
    def walk(node: ast.AST, statement: ast.stmt | None, returns: str) -> Iterator[Any]:
        if isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, ast.FunctionDef):
            returns = ast.unparse(node.returns) if node.returns else ""
        for field, value in ast.iter_fields(node):
            if field in NOT_COMPUTED:
                continue
            many = isinstance(value, list)
            for key, child in enumerate(value) if many else [(field, value)]:
                if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.JoinedStr):
                    continue
                holder = value if many else node.__dict__
                if statement is not None:
                    for new in _replacements(node, field, child, returns):
                        yield holder, key, new, statement
                yield from walk(child, statement, returns)

    yield from walk(tree, None, "")


def _replacements(parent: ast.AST, field: str, child: ast.AST, returns: str) -> Iterator[ast.AST]:
    def changed(**fields: Any) -> ast.AST:
        made = copy.copy(child)
        made.__dict__.update(fields)
        return made

    match child:
        case ast.Compare():
            for i, op in enumerate(child.ops):
                for other in COMPARISONS[type(op)]:
                    yield changed(ops=[*child.ops[:i], other(), *child.ops[i + 1 :]])
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not _is_union(child):
            yield changed(op=ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield changed(op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield changed(value=not value)
        case ast.Constant(value=int() | float() as value):
            yield changed(value=2 * value if abs(value) > 1000 else value + 1)
        case ast.Call(func=ast.Attribute(attr=name) as func) if name in CALLS:
            swapped = ast.Attribute(func.value, CALLS[name], func.ctx)
            yield changed(func=swapped)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield changed(func=ast.Name(CALLS[name], ast.Load()))
        case ast.operator() if isinstance(parent, ast.AugAssign):
            yield ARITHMETIC[type(child)]()
    if field == "test" and not isinstance(child, ast.Compare | ast.BoolOp | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), child)
    if isinstance(parent, ast.Return) and isinstance(child, ast.expr):
        is_none = isinstance(child, ast.Constant) and child.value is None
        if returns in NUMBERS:
            yield ast.UnaryOp(ast.USub(), child)
        elif not is_none:
            yield ast.Constant(None)


def _is_union(node: ast.BinOp) -> bool:
    return any(isinstance(side, ast.Constant) and side.value is None for side in (node.left, node.right))


def _shown(statement: ast.stmt) -> str:
    """The statement on one line; of a compound one its head only."""
    text = ast.unparse(statement)
    head = text.split("\n")[0] if hasattr(statement, "body") else text
    return " ".join(head.split())


def _lines(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    return range(statement.lineno, body[0].lineno if body else (statement.end_lineno or 0) + 1)
