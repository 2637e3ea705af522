"""Rules of size and order, checked on the syntax of every module and the length of every page.

`python -m tests.tidy [PATH ...]` prints each fault with its place, `python -m tests.tidy --lower`
lowers the ceilings of `tests/ceilings.txt` to today's counts. The rules:

- `long-function`: a function has at most 70 lines, its docstring included;
- `unreferenced`: a function, class, constant or method of the product that no product code names;
- `positional`: a struct is built with at most four positional arguments;
- `outside`: product code sets an attribute on `self` or in the module of its class only;
- `words`: README.md, a DESIGN.md and all documents together have a bound in words.

The index of references goes by name: a name that any product code mentions counts as used, whatever
it is bound to there. So the rule misses some dead code and names little that is alive.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tests import language, ratchet
from tests.language import ROOT, Fault
from tests.prose import passages_of, python_files, tree_of
from tests.ratchet import Figure

LINES_MAX: Final = 70
"""Most lines of a function, without its decorators."""
POSITIONAL_MAX: Final = 4
"""Most positional arguments to a struct."""
README_WORDS_MAX: Final = 1_200
DESIGN_WORDS_MAX: Final = 700
TOTAL_WORDS_MAX: Final = 42_000
"""Most words of all documents: the pages of the root and of docs, and every DESIGN.md."""

PRODUCT: Final = ("raftlog", "client")
REFERENCES: Final = (*PRODUCT, "scripts", "docs/examples")
TREES: Final = (*language.TREES, "docs/examples")
PUBLIC: Final = ("raftlog_client", "raftlog_replicated", "raftlog_spark", "pyspark_raftlog")
"""Packages whose `__all__`, with the public methods of its classes, is for users."""
GENERATED: Final = ("raftlog/kafka/messages/",)
"""Generated modules: the generator writes all of a message's parts, used or not."""
ALLOWED: Final[dict[str, str]] = {
    "main": "entry point of pyproject.toml or of `python -m`",
    "eof_received": "asyncio calls it on a protocol",
    "RaftlogDataSource": "pyspark_raftlog exports it to Spark",
    "pushFilters": "Spark calls it on a reader",
    **dict.fromkeys(
        (
            "setCurrentTerm",
            "getCurrentTerm",
            "getVotedForNodeId",
            "getRaftCommitIndex",
            "deleteEntriesFrom",
            "deleteEntriesTo",
            "onOneSecondTimer",
        ),
        "pysyncobj calls it on its journal",
    ),
}
"""Name without a reference → reason why it stays."""
PASSIVE_DECORATORS: Final = frozenset(
    """
    property setter staticmethod classmethod dataclass override abstractmethod overload
    final cached_property cache lru_cache contextmanager asynccontextmanager total_ordering
    runtime_checkable unique wraps
    """.split()  # noqa: SIM905  a list of strings has a line for each
)
"""Decorators that do not register what they decorate, unlike a command's or a route's."""
NOT_BASES: Final = frozenset(
    """
    object ABC Protocol Generic Struct Enum IntEnum StrEnum Flag IntFlag NamedTuple
    TypedDict Exception
    """.split()  # noqa: SIM905  a list of strings has a line for each
)
"""External bases that call no method of their subclasses by name."""
STRUCT_BASES: Final = frozenset({"Struct", "NamedTuple"})
_CODE_TEXT: Final = re.compile(r"[\w.:|\[\],]+")
"""A string without a space: a name, a dotted path or an annotation, and not prose."""
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, class, constant or method that product code should name somewhere."""

    name: str
    line: int
    end: int
    owner: str = ""
    """Class of a method."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class, as far as the rules look at it."""

    bases: frozenset[str]
    is_dataclass: bool


@dataclass(slots=True)
class Module:
    """What the rules need of a module's syntax, read in one pass."""

    functions: list[tuple[str, int, int]]
    """Name, line and number of lines of each function."""
    classes: dict[str, Class]
    calls: list[tuple[str, int, int]]
    """Name, line and number of positional arguments of each call with too many for a struct."""
    sets: list[tuple[str, int]]
    """Target and line of each set attribute of an object other than `self`."""
    attributes: set[str]
    """Attributes that the module's classes declare, or set on `self`."""
    definitions: list[Definition]
    mentions: dict[str, list[int]]
    """Lines on which each name is used."""
    exports: frozenset[str]
    """Names in `__all__`."""


@cache
def module_of(path: Path) -> Module:
    """Read a module once."""
    tree = tree_of(path)
    exported, skipped = _exported(tree)
    module = Module(
        functions=[],
        classes={},
        calls=[],
        sets=[],
        attributes=set(),
        definitions=list(_definitions(tree)),
        mentions=defaultdict(list),
        exports=exported,
    )
    for node, owner in _walk(tree, ""):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            module.functions.append((node.name, node.lineno, lines))
        elif isinstance(node, ast.ClassDef):
            bases = frozenset(map(_base, node.bases))
            is_dataclass = "dataclass" in map(_name, node.decorator_list)
            module.classes[node.name] = Class(bases, is_dataclass)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and owner:
            module.attributes.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}:
                module.attributes.add(node.attr)
            elif not node.attr.startswith("__"):
                module.sets.append((ast.unparse(node), node.lineno))
        elif isinstance(node, ast.Call):
            given = sum(not isinstance(argument, ast.Starred) for argument in node.args)
            if given > POSITIONAL_MAX:
                name = _name(node.func)
                module.calls.append((owner if name == "cls" else name, node.lineno, given))
        if id(node) not in skipped:
            for name in _mentions(node, is_package=path.name == "__init__.py"):
                module.mentions[name].append(node.lineno)  # type: ignore[attr-defined]
    return module


def _walk(node: ast.AST, owner: str) -> Iterator[tuple[ast.AST, str]]:
    """Every node below a node, with the class around it."""
    waiting = [(node, owner)]
    while waiting:
        parent, owner = waiting.pop()
        for child in ast.iter_child_nodes(parent):
            yield child, owner
            waiting.append((child, child.name if isinstance(child, ast.ClassDef) else owner))


def _name(node: ast.expr) -> str:
    """Last part of a name, attribute, call or subscript."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _name(inner)
    return ""


def _base(node: ast.expr) -> str:
    """Name of a base class. An asyncio protocol is no `typing.Protocol`."""
    name = _name(node)
    return "asyncio.Protocol" if ast.unparse(node).startswith("asyncio.") else name


def _mentions(node: ast.AST, *, is_package: bool) -> Iterator[str]:
    """Names that a node uses: a name, an attribute, a keyword, an import or a string of code."""
    match node:
        case ast.Name(name, ctx=ast.Load()):
            yield name
        case ast.Attribute(attr=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name) if not is_package:
            yield name.rpartition(".")[2]
        case ast.Constant(value=str(text)) if _CODE_TEXT.fullmatch(text):
            yield from _IDENTIFIER.findall(text)


def _exported(tree: ast.Module) -> tuple[frozenset[str], frozenset[int]]:
    """Names in the module's `__all__`, and its nodes, which name without using."""
    nodes = [
        part
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        and any(_name(target) == "__all__" for target in _targets(statement))
        for part in ast.walk(statement)
    ]
    names = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return frozenset(name for name in names if isinstance(name, str)), frozenset(map(id, nodes))


def _targets(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    """Definitions that wait for a reference: what a decorator registers has its caller."""
    for node in tree.body:
        end = node.end_lineno or node.lineno
        if isinstance(node, Function | ast.ClassDef) and not _is_registered(node):
            yield Definition(node.name, node.lineno, end)
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, Function) and not _is_registered(part):
                    end = part.end_lineno or part.lineno
                    yield Definition(part.name, part.lineno, end, owner=node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in _targets(node):
                if isinstance(target, ast.Name) and target.id != "_":
                    yield Definition(target.id, node.lineno, end)


def _is_registered(node: Function | ast.ClassDef) -> bool:
    """Whether a decorator gives the definition to a caller, as a command's does."""
    return any(_name(decorator) not in PASSIVE_DECORATORS for decorator in node.decorator_list)


def long_functions(path: Path) -> Iterator[Fault]:
    """Each function of a module that has too many lines."""
    for name, line, lines in module_of(path).functions:
        if lines > LINES_MAX:
            yield Fault("long-function", f"{path}:{line}", f"{name}: {lines} lines")


def positional(path: Path, structs: frozenset[str]) -> Iterator[Fault]:
    """Each construction of a struct that passes too many fields by position."""
    for name, line, given in module_of(path).calls:
        if name in structs:
            yield Fault("positional", f"{path}:{line}", f"{name} takes {given} by position")


def set_from_outside(path: Path) -> Iterator[Fault]:
    """Each attribute set on an object whose class is in another module."""
    module = module_of(path)
    for target, line in module.sets:
        if target.rpartition(".")[2] not in module.attributes:
            yield Fault("outside", f"{path}:{line}", f"{target} is set from outside")


def modules(root: Path, trees: Sequence[str]) -> dict[Path, Module]:
    """Every module of the trees."""
    paths = (path for tree in trees for path in python_files(root / tree))
    return {path: module_of(path) for path in paths}


@cache
def struct_names(root: Path) -> frozenset[str]:
    """Names of the dataclasses, msgspec Structs and named tuples of all trees below `root`."""
    classes = [
        entry for module in modules(root, TREES).values() for entry in module.classes.items()
    ]
    found = {name for name, of in classes if of.is_dataclass} | STRUCT_BASES
    return frozenset(_with_subclasses(found, classes) - STRUCT_BASES)


def _with_subclasses(found: set[str], classes: Sequence[tuple[str, Class]]) -> set[str]:
    """The names, and those of all classes below them."""
    while added := {name for name, of in classes if of.bases & found} - found:
        found = found | added
    return found


@cache
def unreferenced(root: Path) -> tuple[Fault, ...]:
    """Each definition of the product that no other product code names."""
    product = modules(root, PRODUCT)
    places: dict[str, list[tuple[Path, int]]] = defaultdict(list)
    for path, module in modules(root, REFERENCES).items():
        for name, lines in module.mentions.items():
            places[name] += [(path, line) for line in lines]
    public: set[str] = set()
    for path, module in product.items():
        if path.name == "__init__.py" and path.relative_to(root).parts[1] in PUBLIC:
            public |= module.exports
    called_from_outside = _called_from_outside(product)
    return tuple(
        Fault("unreferenced", f"{path}:{definition.line}", definition.name)
        for path, module in product.items()
        if not _is_generated(path, root)
        for definition in module.definitions
        if definition.owner not in called_from_outside
        and not _is_api(definition, public)
        and all(
            place == path and definition.line <= line <= definition.end
            for place, line in places[definition.name]
        )
    )


def _called_from_outside(product: dict[Path, Module]) -> set[str]:
    """Classes of which a library calls methods by name, since they extend a class of it."""
    classes = [entry for module in product.values() for entry in module.classes.items()]
    own = {name for name, _ in classes}
    return _with_subclasses({name for name, of in classes if of.bases - own - NOT_BASES}, classes)


def _is_api(definition: Definition, public: set[str]) -> bool:
    """Whether users or the interpreter use a definition, or it is allowed with its reason."""
    name = definition.name
    if name.startswith("__") or name in ALLOWED or f"{definition.owner}.{name}" in ALLOWED:
        return True
    if definition.owner:
        return definition.owner in public and not name.startswith("_")
    return name in public


def _is_generated(path: Path, root: Path) -> bool:
    return str(path.relative_to(root)).startswith(GENERATED)


def words_of(page: Path) -> int:
    """Words of a page as `wc -w` counts them."""
    return len(page.read_text(encoding="utf-8").split())


def is_document(page: Path, root: Path) -> bool:
    """Whether a page counts as a document: the changelog and pages below tests do not."""
    place = page.relative_to(root)
    if page.name == "DESIGN.md":
        return place.parts[0] != "tests"
    folder = str(place.parent)
    return folder in (".", "docs", "docs/decisions") and page.name != "CHANGELOG.md"


def pages(root: Path) -> list[Path]:
    """Every tracked or new page that is written by hand."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [root / name for name in sorted(set(listed.stdout.splitlines()))]
    return [page for page in found if page.exists() and language.is_written(page)]


def code_faults(path: Path, root: Path = ROOT) -> list[Fault]:
    """Each fault of the modules at or below a path."""
    files = [file for file in python_files(path) if file.suffix == ".py"]
    structs = struct_names(root)
    found = [
        fault
        for file in files
        if not _is_generated(file, root)
        for fault in (*long_functions(file), *positional(file, structs))
    ]
    product = [file for file in files if file.relative_to(root).parts[0] in PRODUCT]
    found += [fault for file in product for fault in set_from_outside(file)]
    below = set(map(str, files))
    found += [fault for fault in unreferenced(root) if fault.place.rpartition(":")[0] in below]
    return found


def packages(root: Path = ROOT) -> dict[str, list[Path]]:
    """Modules by place: a tree's direct modules, or all below a directory of the tree."""
    places: dict[str, list[Path]] = defaultdict(list)
    for tree in TREES:
        for file in python_files(root / tree):
            parts = file.relative_to(root / tree).parts
            place = f"{tree}/{parts[0]}" if len(parts) > 1 else tree
            if file.name not in language.OF_THE_RULES:
                places[place].append(file)
    return dict(places)


def figures(root: Path = ROOT) -> list[Figure]:
    """The count of every rule in every place."""
    found: list[Figure] = []
    for files in packages(root).values():
        for file in files:  # one after the other, so that each is parsed once
            passages_of(file)
            module_of(file)
    counts = Counter(
        (fault.rule, fault.place.rpartition(":")[0])
        for tree in TREES
        for fault in code_faults(root / tree, root)
    )
    for place, files in packages(root).items():
        found += language.figures(place, files)
        for rule in ("long-function", "unreferenced", "positional", "outside"):
            found.append(Figure(rule, place, sum(counts[rule, str(file)] for file in files)))
    total = 0
    for page in pages(root):
        place = str(page.relative_to(root))
        words = words_of(page)
        total += words if is_document(page, root) else 0
        found += language.figures(place, [page])
        if page.name == "DESIGN.md" or place == "README.md":
            most = DESIGN_WORDS_MAX if page.name == "DESIGN.md" else README_WORDS_MAX
            found.append(Figure("words", place, words, most))
    found.append(Figure("words", "documents", total, TOTAL_WORDS_MAX))
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the faults of each path, or lower the ceilings."""
    if arguments and arguments[0] == "--lower":
        ratchet.write(figures(), ratchet.read())
        return 0
    failed = False
    for path in [Path(argument).resolve() for argument in arguments] or [ROOT]:
        found: list[Fault] = []
        if path.is_dir() or path.suffix == ".py":
            for tree in [ROOT / tree for tree in TREES] if path == ROOT else [path]:
                found += code_faults(tree)
        for fault in sorted(found, key=lambda fault: fault.rule):
            print(fault)
        for page in pages(ROOT):
            if page == path or path in page.parents:
                print(f"{page}: {words_of(page)} words")
        print(f"{path}:", dict(Counter(fault.rule for fault in found)))
        failed = failed or bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
