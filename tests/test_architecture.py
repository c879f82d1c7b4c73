"""The house rules, enforced by reading the source: who may import whom, how long things are, what never appears."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from specviz.methods.registry import all_methods

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ROOT / "specviz"
PYTHON = sorted([*HOUSE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.py")])
OURS = [file for file in PYTHON if file.is_relative_to(HOUSE) or file.parent == ROOT]
WRITTEN = [*PYTHON, *sorted([*HOUSE.rglob("*.js"), *HOUSE.rglob("*.css")])]

BASE = frozenset({"errors", "palette", "paths", "prompts", "version"})
"""Files beside the rooms that know nothing else of the house; everything may import the last four."""
MIDDLE = frozenset({"targets", "drafting", "acceptance"})
BELOW_METHODS = frozenset({"errors", "trace", "engine"}) | MIDDLE
BELOW_RUN = BELOW_METHODS | {"methods", "models"}
ALL = BELOW_RUN | {"figures", "inspection", "interop", "palette", "pipeline", "prompts", "viewer"}
# A room may import itself and the rooms listed here; the files beside the rooms count as rooms of their own.
MAY_IMPORT = {
    **dict.fromkeys(BASE, frozenset()),
    "trace": frozenset({"errors"}),
    "engine": frozenset({"errors", "trace"}),
    **dict.fromkeys(MIDDLE, frozenset({"errors", "trace", "engine"})),
    **dict.fromkeys(("methods", "models"), BELOW_METHODS),
    "pipeline": BELOW_RUN,
    "interop": BELOW_RUN | {"pipeline"},
    "inspection": BELOW_RUN | {"figures", "pipeline"},
    **dict.fromkeys(("figures", "viewer"), frozenset({"errors", "palette", "trace"})),
    "bench": ALL - {"viewer"} | {"training"},  # the first run on a GPU trains for seconds; never the other way
    "training": ALL - {"viewer"},
    "ui": ALL,
    "commands": ALL | {"bench", "training"},
    "__main__": ALL | {"bench", "training", "commands"},
    "__init__": frozenset({"interop", "figures", "pipeline"}),
    "app": frozenset({"ui"}),
}
# The one arrow up: ``Trace.show`` puts a run on the stage.
DOORS = {("trace", "specviz.viewer.replay")}
# Most Python tokens of a room, without comments, docstrings and layout. A number may only fall: what comes pays by what goes.
BUDGETS = {
    "acceptance": 5_153,
    "bench": 26_300,
    "commands": 8_121,
    "drafting": 59_236,
    "engine": 23_090,
    "figures": 10_160,
    "inspection": 7_707,
    "interop": 19_982,
    "methods": 47_213,
    "models": 46_359,
    "pipeline": 7_182,
    "specviz": 1_532,
    "targets": 15_764,
    "trace": 13_993,
    "training": 83_760,
    "ui": 43_101,
    "viewer": 3_599,
}
# Which libraries stay out of which rooms: (library, where it may be).
FENCES = {
    "torch": ("everywhere but", ("trace", "figures", "viewer")),
    "transformers": ("everywhere but", ("trace", "figures", "viewer")),
    "gradio": ("only in", ("ui", "viewer/component.py", "app.py")),
    "plotly": ("only in", ("figures",)),
}
# Written apart so that this file may be held to its own rules.
NEVER = [
    "TO" + "DO",
    "FIX" + "ME",
    "XX" + "X",
    "NotImplemented" + "Error",
    "time.sleep" + "(",
    "torch.load" + "(",
    "trust_remote_code=" + "True",
    "pragma: " + "no cover",
]
PLAIN_WORDS = {"autoregressive", "speculative_sampling", "traversal"}
"""Names of methods that say what anybody's algorithm does."""
SHARED_HEAD = {"EagleHead", "EagleConfig", "EagleRuntime", "PublishedEagleHead", "eagle_head"}
"""Names of the one draft head that many papers' methods share, and of its file. Drafting and pipeline may use them."""


def _name(file):
    return file.relative_to(ROOT).as_posix()


@cache
def _text(file):
    return file.read_text(encoding="utf-8")


@dataclass
class Read:
    """What one reading of a file found; its syntax tree is let go, as those of all files are a burden to every later test."""

    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    imported_by_name: list[str] = field(default_factory=list)
    """What ``importlib.import_module`` is given as a literal."""
    functions: list[tuple[int, int, str]] = field(default_factory=list)
    """First line, lines, name."""
    identifiers: list[tuple[int, str]] = field(default_factory=list)


@cache
def _read(file):
    tree = ast.parse(_text(file), filename=str(file), feature_version=(3, 11))
    found = Read()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.imports.append(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            if isinstance(node.args[0], ast.Constant):
                found.imported_by_name.append(str(node.args[0].value))
        elif isinstance(node, ast.Name):
            found.identifiers.append((node.lineno, node.id))
        elif isinstance(node, ast.Attribute):
            found.identifiers.append((node.lineno, node.attr))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found.functions.append((node.lineno, lines, node.name))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.identifiers.append((node.lineno, node.name))
    return found


def _room(file):
    inside = file.relative_to(HOUSE) if file.is_relative_to(HOUSE) else file.relative_to(ROOT)
    return inside.parts[0].removesuffix(".py")


def _imported(file):
    """Dotted names of everything a file imports, wherever in the file, relative imports made absolute."""
    package = file.relative_to(ROOT).with_suffix("").parts[:-1]
    yield from _read(file).imported_by_name
    for node in _read(file).imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_every_file_stands_in_a_room_with_rules():
    strangers = [_name(file) for file in OURS if _room(file) not in MAY_IMPORT]
    assert not strangers, f"no rule says what these may import: {strangers}"


def test_imports_run_one_way():
    wrong = []
    for file in OURS:
        room = _room(file)
        for name in _imported(file):
            parts = name.split(".")
            if parts[0] != "specviz" or len(parts) < 2 or parts[1] not in MAY_IMPORT:
                continue  # another library, or a name that specviz/__init__.py itself offers
            if parts[1] != room and parts[1] not in MAY_IMPORT[room] | BASE - {"errors"} and (room, name) not in DOORS:
                wrong.append(f"{_name(file)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_no_two_modules_import_each_other_not_even_round_a_corner():
    """Imports in functions and under TYPE_CHECKING count: who needs a module to be understood needs it wherever it is named."""
    modules = {_name(file).removesuffix(".py").replace("/", "."): file for file in HOUSE.rglob("*.py")}
    graph = nx.DiGraph()
    for module, file in modules.items():
        names = [name for name in _imported(file) if (_room(file), name) not in DOORS]
        names += [name.rpartition(".")[0] for name in names]
        graph.add_edges_from((module, name) for name in names if name in modules and name != module)
    circles = [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]
    assert not circles, f"these import each other: {circles}"


@pytest.mark.parametrize("library", FENCES)
def test_libraries_stay_behind_their_fences(library):
    rule, places = FENCES[library]
    wrong = []
    for file in OURS:
        inside = _name(file).removeprefix("specviz/")
        listed = any(inside == place or inside.startswith(place + "/") for place in places)
        uses = any(name.split(".")[0] == library for name in _imported(file))
        if uses and listed != (rule == "only in"):
            wrong.append(_name(file))
    assert not wrong, f"{library} belongs {rule} {', '.join(places)}; found in {wrong}"


def test_every_library_that_is_imported_is_required_in_a_range():
    """``vllm``, ``playwright`` and ``spaces`` are imported only where they are there already."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    ranged = {match[1].lower() for line in lines if (match := re.match(r"([\w-]+)>=[\d.]+,<\d", line))}
    packages = {"PIL": "pillow", "specviz": ""}
    libraries = {name.split(".")[0] for file in OURS for name in _imported(file)} - sys.stdlib_module_names
    required = {packages.get(name, name) for name in libraries} - {"", "vllm", "playwright", "spaces"}
    assert required <= ranged, f"requirements.txt gives no range for {sorted(required - ranged)}"


def test_files_are_at_most_500_lines():
    long = [_name(file) for file in WRITTEN if len(_text(file).splitlines()) > 500]
    assert not long, "\n".join(long)


def _tokens(file):
    """Python's tokens of a file but comments, docstrings and layout, so that no formatting changes the number."""
    layout = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    inside = set()
    for node in ast.walk(ast.parse(_text(file))):
        first = node.body[0] if isinstance(node, documented) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            inside.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    found = tokenize.generate_tokens(io.StringIO(_text(file)).readline)
    return sum(one.type not in layout and not (one.type == tokenize.STRING and one.start[0] in inside) for one in found)


@pytest.mark.slow
def test_no_room_outgrows_its_budget():
    rooms = Counter()
    for file in HOUSE.rglob("*.py"):
        rooms[_room(file) if file.parent != HOUSE else "specviz"] += _tokens(file)
    assert rooms.keys() == BUDGETS.keys()
    grown = {room: f"{count} of {BUDGETS[room]}" for room, count in rooms.items() if count > BUDGETS[room]}
    assert not grown, f"these rooms outgrew their budgets; what comes pays by what goes: {grown}"


def test_every_script_has_its_types_checked():
    assert not [_name(file) for file in HOUSE.rglob("*.js") if not _text(file).startswith("// @ts-check\n")]


def test_every_style_sheet_stands_beside_its_module():
    alone = [file for file in HOUSE.rglob("*.css") if not any(file.with_suffix(kind).exists() for kind in (".js", ".py"))]
    assert not [_name(file) for file in alone]


def test_every_file_to_read_is_there():
    section = _text(ROOT / ".github" / "ARCHITECTURE.md").partition("## What to read")[2].partition("\n## ")[0]
    named = [match.groups() for match in re.finditer(r"`([\w/]+/)(?:\{([\w,]+)\}|(\w+))(\.\w+)`", section)]
    files = [folder + name + kind for folder, several, one, kind in named for name in (several or one).split(",")]
    assert files and not [file for file in files if not (HOUSE / file).is_file()]
    numbers = [int(number) for number in re.findall(r"\*: (\d+) files", section)]
    assert sum(numbers) == len(files), "the numbers of files"


def test_the_app_is_at_most_40_lines():
    app = ROOT / "app.py"
    assert not app.exists() or len(app.read_text("utf-8").splitlines()) <= 40


def test_functions_are_at_most_80_lines():
    long = [
        f"{_name(file)}:{line} {name} has {lines} lines"
        for file in PYTHON
        for line, lines, name in _read(file).functions
        if lines > 80
    ]
    assert not long, "\n".join(long)


def test_forbidden_words_never_appear():
    said = [
        f"{_name(file)}:{number} says {word}"
        for file in WRITTEN
        for number, line in enumerate(_text(file).splitlines(), start=1)
        for word in NEVER
        if word in line and not _opens_weights_alone(file, line)
    ]
    assert not said, "\n".join(said)


def _opens_weights_alone(file, line):
    """The one place that may open a torch zip: a command of the user's own, which builds tensors and nothing else."""
    return _name(file) == "specviz/commands/convert.py" and line.strip().endswith("weights_only=" + "True)")


def test_no_test_module_imports_another():
    """What two of them share lies in ``tests/support``."""
    wrong = [
        f"{_name(file)} imports {name}"
        for file in PYTHON
        if _name(file).startswith("tests/")
        for name in _imported(file)
        if re.match(r"tests\.(?!support\.)", name)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_that_serves_requests_can_open_a_torch_zip():
    importers = [_name(file) for file in OURS if any(name.startswith("specviz.commands") for name in _imported(file))]
    assert all(_room(ROOT / name) in {"commands", "__main__"} for name in importers), importers


def test_commands_print_through_the_console_alone():
    """It spells out what would steer a terminal; the live run colours what it has spelled out itself."""
    files = [file for file in OURS if _room(file) in {"commands", "__main__"} and file.name not in {"console.py", "live.py"}]
    printing = re.compile(r"(?<![\w.])print\(|\.std(out|err)\.write\(")
    assert not [_name(file) for file in files if printing.search(_text(file))]


def test_no_path_of_some_machine_is_written_down():
    places = re.compile(r"/(?:work|home|root|Users|mnt)/\w")
    found = [
        f"{_name(file)}:{number}"
        for file in [*WRITTEN, *ROOT.glob("*.md"), *ROOT.glob("*.txt")]
        for number, line in enumerate(_text(file).splitlines(), start=1)
        if places.search(line)
    ]
    assert not found, "\n".join(found)


def _words(identifier):
    """An identifier's words, and its neighbours joined, so that ``TokenRecycling`` holds ``token_recycling``."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", identifier)]
    return {*words, *("_".join(words[start : start + 2]) for start in range(len(words) - 1))}


def _identifiers(file):
    yield 1, file.stem
    yield from _read(file).identifiers


def test_papers_are_named_only_by_their_methods():
    """The engine must not know whose idea it runs. Docstrings may cite; names in code may not."""
    papers = set(all_methods()) - PLAIN_WORDS
    rooms = {"engine", "trace", "viewer", "pipeline", *MIDDLE}
    named = [
        f"{_name(file)}:{line} {identifier}"
        for file in OURS
        if _room(file) in rooms
        for line, identifier in _identifiers(file)
        if _words(identifier) & papers and not (identifier in SHARED_HEAD and _room(file) in {"drafting", "pipeline"})
    ]
    assert not named, "\n".join(named)


def test_nothing_shipped_is_too_heavy():
    sizes = {_name(file): file.stat().st_size for file in (ROOT / "assets").rglob("*") if file.is_file()}
    heavy = {name: size for name, size in sizes.items() if size >= 10_000_000}
    assert not heavy


def test_all_that_is_tracked_is_light():
    """A clone brings the weights along; without git there is nothing to ask."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    assert sum(file.stat().st_size for file in files if file.is_file()) <= 80_000_000
