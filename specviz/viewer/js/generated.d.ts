// The module that viewer/bundle.py writes, with the script's constants from Python.
export const MEASURED: { target: string; source: string; date: string; lengths: number[]; curves: { method: string; kind: string; tau: number[] }[] }[];
export const LABELS: Record<string, string>;
export const LEGEND: Record<string, string>;
export const MAX_PRUNED: number;
export const LEVEL: number;
export const DRAWN_RULES: string[];
export const EQUAL_RULES: string[];
export const CSS: string;
export const PAPERS: Record<string, string>;
export const SHAPES: Record<string, string>;
