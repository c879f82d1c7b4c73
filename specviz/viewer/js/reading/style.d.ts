// The module that viewer/bundle.py writes for the reading view: its style sheet.
export const CSS: string;
