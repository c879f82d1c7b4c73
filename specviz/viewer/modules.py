"""Bundler that joins the viewer's ES modules into one classic script, without a build step.

A module may use only these forms, with imports at the top of the file:

    import * as format from "../kit/format.js";          export const a = …
    import { Tip, text as words } from "../kit/tip.js";  export function a(…) …     export class A …

Each module becomes a function that is called once and returns the exports; other names stay private.
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
    """Error for a module with an unsupported form of import or export."""


@dataclass(frozen=True)
class Import:
    """An import: the module's name, and a namespace or the (exported, local) names."""

    module: str
    namespace: str | None
    names: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Module:
    """A module. ``name``: path below ``js/`` without extension; ``body``: code without imports and exports."""

    name: str
    imports: tuple[Import, ...]
    exports: tuple[str, ...]
    body: str


def parse(name: str, source: str) -> Module:
    """Parse a module. Raises BadModule for an unsupported form of import or export."""
    imports = []
    for match in _IMPORT.finditer(source):
        module = posixpath.normpath(posixpath.join(posixpath.dirname(name), match["path"]))
        pairs = [re.split(r"\s+as\s+", part.strip()) for part in (match["some"] or "").split(",") if part.strip()]
        imports.append(Import(module, match["whole"], tuple((pair[0], pair[-1]) for pair in pairs)))
    body = _IMPORT.sub("", source)
    exports = tuple(match["name"] for match in _EXPORT.finditer(body))
    body = _EXPORT.sub("", body)
    if other := _OTHER.search(body):
        raise BadModule(f"{name}.js: this form of import or export is not supported: {other[0]}")
    return Module(name, tuple(imports), exports, body)


def ordered(sources: Mapping[str, str]) -> list[Module]:
    """Parse and sort modules so that imports come first. ``sources``: text by module name.

    Raises RecursionError for circular imports and KeyError for a missing module.
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
    """Bundle sorted modules into a script that defines ``modules``, the exports by module name.

    Imports from outside these modules are taken from ``SpecvizViewer.modules``, which an earlier script defines.
    """
    # Short variable names, because the script has several hundred imports.
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
