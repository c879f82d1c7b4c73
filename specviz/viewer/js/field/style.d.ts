// The module that viewer/bundle.py writes for the Methods tab: its style sheet.
export const CSS: string;
