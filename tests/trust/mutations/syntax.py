# SPDX-License-Identifier: Apache-2.0
"""All mutants of a C++ file, by its syntax tree: what `mutants.py draw` draws from.

Needs tree-sitter and its C++ grammar. Memory orders are left alone: tests on x86 would not see them (bugs/ has some,
for ThreadSanitizer). So is what the compiler evaluates (constants, sizes of arrays, `if constexpr`), as a mutant is
switched on when the program starts; bugs/ has some of these, too.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

BINARY = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "logic": {"&&": "||", "||": "&&"},
    "arithmetic": {
        "+": "-",
        "-": "+",
        "*": "/",
        "/": "*",
        "%": "/",
        "<<": ">>",
        ">>": "<<",
        "&": "|",
        "|": "&",
        "^": "|",
    },
}
ASSIGNING = {"+=": "-=", "-=": "+=", "|=": "&=", "&=": "|=", "<<=": ">>=", ">>=": "<<="}
NO_CODE = {
    *(
        "comment",
        "string_literal",
        "raw_string_literal",
        "char_literal",
        "system_lib_string",
        "static_assert_declaration",
    ),
    *("preproc_def", "preproc_function_def", "preproc_include", "preproc_call", "template_argument_list"),
    *("template_parameter_list", "attribute_declaration", "alignas_qualifier", "requires_clause", "concept_definition"),
    *("using_declaration", "alias_declaration", "bitfield_clause", "noexcept"),
    # What the compiler evaluates:
    *("enumerator", "array_declarator", "decltype", "sizeof_expression", "alignof_expression", "noexcept_specifier"),
    *("friend_declaration", "optional_parameter_declaration"),
}
FUNCTIONS = ("function_definition", "lambda_expression")
# What a function returns that went wrong, as this code names it.
ERROR = re.compile(
    r"-\s*(E[A-Z0-9]+|errno)$|-?\s*\w*(error|err|errno|status|result|rc|answer)_?(\(\))?$|.*(\.|->)error\(\)$"
)
ONLY_CUDA = re.compile(r"__CUDA|GPUFS_ON_CUDA|GPUFS_WITH_CUDA")


@dataclass(frozen=True)
class Mutant:
    """Bytes [start, end) of file become `new`. The switch between both (switched.py) encloses [outer, outer_end)."""

    key: str  # stays the same while the function's lines do, wherever it moves in the file
    file: str
    line: int
    function: str
    operator: str
    start: int
    end: int
    old: str
    new: str
    form: str  # of the switch
    outer: int
    outer_end: int
    in_constexpr: bool  # the compiler may evaluate the function, too


@dataclass(frozen=True)
class _Change:
    node: Node
    operator: str
    new: str
    outer: Node  # what the switch encloses
    form: str = "expression"


def all_mutants(root: Path, file: str) -> list[Mutant]:
    """Of root/file, in the order of the text."""
    text = (root / file).read_bytes()
    tree = Parser(Language(tree_sitter_cpp.language())).parse(text)
    lines = text.decode().split("\n")
    seen: Counter[str] = Counter()
    found = []
    for change in _walk(tree.root_node):
        node, outer = change.node, change.outer
        in_constexpr = _when_evaluated(outer)
        if in_constexpr is None:
            continue
        row = node.start_point[0]
        function = _function_of(node)
        words = (file, function, lines[row], change.operator, _text(node), change.new)
        what = "|".join(" ".join(word.split()) for word in words)
        nth = seen[what]  # of those that look alike in this function
        seen[what] += 1
        key = hashlib.sha256(f"{what}|{nth}".encode()).hexdigest()[:12]
        found.append(
            Mutant(
                *(
                    key,
                    file,
                    row + 1,
                    function,
                    change.operator,
                    node.start_byte,
                    node.end_byte,
                    _text(node),
                    change.new,
                ),
                *(change.form, outer.start_byte, outer.end_byte, in_constexpr),
            )
        )
    return found


def _when_evaluated(node: Node) -> bool | None:
    """True if the compiler may evaluate it, too; None if only the compiler does."""
    below = node
    above = node.parent
    while above is not None:
        if above.type in ("declaration", "field_declaration"):
            words = {_text(child) for child in above.children if child.type.endswith(("specifier", "qualifier"))}
            if words & {"constexpr", "constinit", "static"}:
                return None
            if above.type == "field_declaration" and not _has_above(above, FUNCTIONS):
                return True  # evaluated wherever the class is constructed
        elif above.type == "if_statement" and any(child.type == "constexpr" for child in above.children):
            if below == above.child_by_field_name("condition"):
                return None
        elif above.type == "case_statement" and below == above.child_by_field_name("value"):
            return None
        elif above.type == "function_definition":
            return "constexpr" in _text(above).split("{", 1)[0]
        below, above = above, above.parent
    return None


def _has_above(node: Node, types: tuple[str, ...]) -> bool:
    above = node.parent
    while above is not None and above.type not in types:
        above = above.parent
    return above is not None


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _walk(node: Node) -> Iterator[_Change]:
    if node.type in NO_CODE:
        return
    yield from _changes(node)
    skip = None
    if node.type in ("preproc_if", "preproc_ifdef", "preproc_elif"):
        condition = _text(node).split("\n", 1)[0]
        negated = "ifndef" in condition or "!" in condition
        if ONLY_CUDA.search(condition):  # one of the two branches is never compiled here
            skip = "alternative" if negated else "body"
    for i, child in enumerate(node.children):
        is_alternative = node.field_name_for_child(i) == "alternative"
        if skip is None or (is_alternative and skip == "body") or (not is_alternative and skip == "alternative"):
            yield from _walk(child)


def _changes(node: Node) -> Iterator[_Change]:
    if node.type == "binary_expression":
        yield from _binary(node)
    elif node.type == "number_literal":
        yield from _number(node)
    elif node.type in ("true", "false"):
        yield _Change(node, "constant", "false" if node.type == "true" else "true", node)
    elif node.type == "assignment_expression":
        operator = node.child_by_field_name("operator")
        if operator is not None and (other := ASSIGNING.get(_text(operator))):
            yield _Change(operator, "arithmetic", other, node)
    elif node.type == "expression_statement" and node.named_children:
        inner = node.named_children[0]
        if inner.type in ("call_expression", "update_expression"):
            yield _Change(node, "dropped statement", ";", node, "statement")
        elif inner.type == "assignment_expression" and "[" not in _text(inner).split("=")[0]:
            yield _Change(node, "dropped assignment", ";", node, "statement")
    elif node.type == "return_statement" and node.named_children:
        value = node.named_children[0]
        if ERROR.match(_text(value)):
            yield _Change(value, "dropped error", "0", node, "return")
    elif node.type in ("if_statement", "while_statement"):
        yield from _condition(node)
    elif node.type == "call_expression":
        called = node.child_by_field_name("function")
        if called is not None and (match := re.search(r"(^|::)(min|max)(<.*>)?$", _text(called))):
            other = "max" if match[2] == "min" else "min"
            text = _text(called)
            new = text[: match.start(2)] + other + text[match.end(2) :]
            yield _Change(called, "min and max", new, node)


def _binary(node: Node) -> Iterator[_Change]:
    operator = node.child_by_field_name("operator")
    if operator is None:
        return
    for kind, others in BINARY.items():
        if (other := others.get(_text(operator))) is not None:
            yield _Change(operator, kind, other, node)


def _number(node: Node) -> Iterator[_Change]:
    match = re.fullmatch(r"(0[xX][0-9a-fA-F']+|[0-9][0-9']*)([uUlLzZ]*)", _text(node))
    if not match:
        return
    value = int(match[1].replace("'", ""), 16 if match[1][:2].lower() == "0x" else 10)
    for step in (1, -1):
        if value + step >= 0:
            yield _Change(node, "constant", f"{value + step}{match[2]}", node)
    if value == 0 and not match[2]:
        yield _Change(node, "constant", "-1", node)


def _condition(node: Node) -> Iterator[_Change]:
    clause = node.child_by_field_name("condition")
    if clause is None:
        return
    value = clause.child_by_field_name("value") or clause
    if value.type in ("declaration", "condition_declaration"):  # `if (T x = ...)` cannot be negated in place
        return
    if any(child.type == "declaration" for child in clause.children) and value is clause:
        return
    text = _text(value)
    if value is clause:
        text = text[1:-1] if text.startswith("(") else text
        yield _Change(clause, "negated condition", f"(!({text}))", clause, "condition")
    else:
        yield _Change(value, "negated condition", f"!({text})", value, "condition")


def _function_of(node: Node) -> str:
    names = []
    above: Node | None = node
    while above is not None:
        if above.type == "function_definition":
            declarator = above.child_by_field_name("declarator")
            if declarator is not None:
                names.append(re.sub(r"\(.*", "", _text(declarator), flags=re.DOTALL).strip(" *&"))
        elif above.type in ("class_specifier", "struct_specifier"):
            name = above.child_by_field_name("name")
            names.append(_text(name) if name is not None else "")
        above = above.parent
    return "::".join(reversed(names))
