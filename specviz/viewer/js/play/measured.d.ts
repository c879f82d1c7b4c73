// The module that viewer/bundle.py writes for the Play tab: its style sheet, and measured milliseconds of a pass by its rows.
export const CSS: string;
export const PASSES: { rows: number[]; milliseconds: number[]; machine: string; date: string };
export const CORES: typeof PASSES;
