// The module that viewer/bundle.py writes for the story: its style sheet, the run that it tells with the note on it, and the model's weights.
export const CSS: string;
export const RUN: string;
export const NOTE: string;
export const WEIGHTS: number;
