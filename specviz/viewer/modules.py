"""Ordering of the viewer's ES modules by their imports, and one classic script made of them without a build step.

A module is a file below ``js/``. It may use only these forms, each import at the top and on its own line or lines:

    import * as format from "../kit/format.js";          export const a = …
    import { Tip, text as words } from "../kit/tip.js";  export function a(…) …     export class A …

Every module becomes a function that is called once and returns its exports, so all other names stay private.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_IMPORT = re.compile(r'^import (?:\* as (?P<whole>\w+)|\{(?P<some>[^}]*)\}) from "(?P<path>\.\.?/[^"\n]+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|function|async function|class) (?P<name>\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


class BadModule(Exception):
    """A module that cannot be bundled into the script; the message names the file and the fault."""


@dataclass(frozen=True)
class Import:
    """One import line: the module's name, and its local namespace or the (exported, local) names of the imports."""

    module: str
    namespace: str | None
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Module:
    """A file below ``js/`` by its path without the ending, such as ``kit/format``; ``body`` holds no import and no export."""

    name: str
    imports: tuple[Import, ...]
    exports: tuple[str, ...]
    body: str


def parse(name: str, source: str) -> Module:
    """Parse the module in ``source``. Raises BadModule for an import or export in another form than those above."""
    imports = []
    for match in _IMPORT.finditer(source):
        module = posixpath.normpath(posixpath.join(posixpath.dirname(name), match["path"]))
        pairs = [re.split(r"\s+as\s+", part.strip()) for part in (match["some"] or "").split(",") if part.strip()]
        imports.append(Import(module, match["whole"], tuple((pair[0], pair[-1]) for pair in pairs)))
    body = _IMPORT.sub("", source)
    exports = tuple(match["name"] for match in _EXPORT.finditer(body))
    body = _EXPORT.sub("", body)
    if other := _OTHER.search(body):
        raise BadModule(f"{name}.js: this form of import or export is not understood: {other[0]}")
    return Module(name, tuple(imports), exports, body)


def ordered(sources: Mapping[str, str]) -> list[Module]:
    """Order the modules, each after those it imports, otherwise in the order of ``sources``, name to text.

    Raises RecursionError for circular imports and KeyError for one that does not exist; the type checker proves that modules
    export what is imported.
    """
    placed: dict[str, Module] = {}

    def place(name: str) -> None:
        if name not in placed:
            module = parse(name, sources[name])
            for line in module.imports:
                place(line.module)
            placed[name] = module

    for name in sources:
        place(name)
    return list(placed.values())


def classic(modules: Sequence[Module]) -> str:
    """Bundle ``modules``, in the order of their imports, into a script. Its ``modules`` holds each one's exports by name.

    Modules that they import from outside are taken from ``SpecvizViewer.modules``, those of a script that is already there.
    """
    # Short names: there are several hundred imports, and the script travels with every page.
    short = {module.name: f"${place}" for place, module in enumerate(modules)}
    script, outside = "", 'SpecvizViewer.modules["{}"]'
    for module in modules:
        bindings = []
        for line in module.imports:
            names = ",".join(exported if exported == local else f"{exported}:{local}" for exported, local in line.names)
            bindings.append(f"{line.namespace or f'{{{names}}}'}={short.get(line.module, outside.format(line.module))}")
        head = f"const {','.join(bindings)};\n" if bindings else ""
        exports = ",".join(module.exports)
        script += f"const {short[module.name]} = (() => {{\n{head}{module.body}return {{{exports}}};\n}})();\n"
    listed = ",".join(f'"{name}":{variable}' for name, variable in short.items())
    return f"{script}const modules = {{{listed}}};\n"
