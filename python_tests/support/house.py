# SPDX-License-Identifier: Apache-2.0
"""Measurements for test_house.py: functions and their lengths in Python and C++, and the graph of imports."""

import ast
import re

PYTHON_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef)


def python_functions(text):
    """Yield (name, lines without the docstring, parameters, names of the decorators) of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, PYTHON_SCOPES):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            a = node.args
            parameters = len([*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))])
            yield node.name, lines, parameters, [ast.unparse(x) for x in node.decorator_list]


def bare(text):
    """Return C++ without comments, strings and preprocessor lines; the lines keep their numbers."""
    blank = lambda match: re.sub(r"[^\n]", " ", match[0])
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', blank, text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def cpp_functions(text):
    """Yield (name, lines from the head to the closing brace) of every function in a namespace or type.

    A function's length includes its lambdas.
    """
    text = bare(text)
    scopes, start = [], 0  # scopes: (kind, start of its head, name); start: of the next brace's head
    depth = 0  # of parentheses: braces inside belong to an argument
    for at, char in enumerate(text):
        if char in "()":
            depth += 1 if char == "(" else -1
        elif depth == 0 and char == ";":
            start = at + 1
        elif depth == 0 and char == "{":
            head = text[start:at]
            inside = scopes and scopes[-1][0] != "scope"
            if inside:
                kind = "inner"
            elif re.search(r"\b(namespace|struct|class|union|enum|extern)\b[^()=]*$", head):
                kind = "scope"
            else:
                kind = "function" if "(" in head and not re.search(r"=\s*$", head) else "inner"
            begins = start + len(head) - len(head.lstrip())
            named = re.search(
                r"([\w~]+|operator\W+)\s*\(", re.sub(r"^\s*template\s*<.*?>\s*(?=\w)", "", head, flags=re.S)
            )
            scopes.append((kind, begins, named[1] if named else ""))
            start = at + 1
        elif depth == 0 and char == "}":
            kind, begins, name = scopes.pop()
            if kind == "function":
                yield name, text[begins:at].count("\n") + 1
            start = at + 1


def module_name(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(root, package):
    """Return {module: modules of the package that it imports, anywhere in its file}."""
    files = {module_name(path, root): path for path in sorted((root / package).rglob("*.py"))}
    return {name: {x for x in _imported(name, path, files) if x != name} for name, path in files.items()}


def _imported(name, path, files):
    here = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            up = here.split(".")[: len(here.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner in files or source in files:
                    yield inner if inner in files else source


def imported(text):
    """Yield every part of the names that a file imports, or that a program in one of its strings imports.

    Yield every string, too, since it may name a module.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            yield from (part for name in names for part in name.split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for statement in re.findall(r"\b(?:import|from) ([^;\n]+)", node.value):
                yield from re.findall(r"\b\w+\b(?!\.py)", statement)
            yield node.value


def circle(graph):
    """Return a cycle of a graph as a list of nodes, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        path.append(node)
        found = next(filter(None, map(visit, sorted(graph.get(node, ())))), None)
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(graph))), None)


def floors(graph):
    """Return the longest path in a graph without cycles."""
    below = {}

    def way(node):
        if node not in below:
            below[node] = [node, *max((way(x) for x in graph.get(node, ())), key=len, default=[])]
        return below[node]

    return max((way(node) for node in graph), key=len)
