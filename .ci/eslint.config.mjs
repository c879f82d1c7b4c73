// What ESLint asks of the JavaScript. Imports and exports that do not meet are errors of specviz/viewer/modules.py.
const PAGE = [
  "Blob", "CustomEvent", "EventSource", "Image", "HTMLCanvasElement", "IntersectionObserver", "KeyboardEvent", "MediaRecorder",
  "MutationObserver", "ResizeObserver", "Response", "URL", "URLSearchParams", "XMLSerializer", "DecompressionStream",
  "atob", "cancelAnimationFrame", "clearTimeout", "devicePixelRatio", "document", "getComputedStyle", "history", "innerWidth",
  "fetch", "localStorage", "location", "navigator", "matchMedia", "performance", "requestAnimationFrame", "sessionStorage",
  "setInterval", "setTimeout", "window",
];

const rules = {
  "array-callback-return": "error",
  "consistent-return": "error",
  "default-case-last": "error",
  eqeqeq: "error",
  "no-const-assign": "error",
  "no-constant-condition": "error",
  "no-dupe-args": "error",
  "no-dupe-class-members": "error",
  "no-dupe-else-if": "error",
  "no-dupe-keys": "error",
  "no-duplicate-case": "error",
  "no-empty": "error",
  "no-eval": "error",
  "no-fallthrough": "error",
  "no-func-assign": "error",
  "no-implied-eval": "error",
  "no-import-assign": "error",
  "no-new-func": "error",
  "no-redeclare": "error",
  "no-self-assign": "error",
  "no-self-compare": "error",
  "no-sparse-arrays": "error",
  "no-undef": "error",
  "no-unreachable": "error",
  "no-unsafe-finally": "error",
  "no-unsafe-negation": "error",
  "no-unused-vars": ["error", { argsIgnorePattern: "^_", args: "after-used" }],
  "no-use-before-define": ["error", { functions: false, classes: false, variables: false }],
  "no-var": "error",
  "prefer-const": ["error", { destructuring: "all" }],
  "use-isnan": "error",
  "valid-typeof": "error",
};

const globals = Object.fromEntries(PAGE.map((name) => [name, "readonly"]));
const COMPONENT = Object.fromEntries(["Option", "element", "props", "server", "trigger", "watch"].map((name) => [name, "readonly"]));
const linterOptions = { reportUnusedDisableDirectives: "error" };

export default [
  { files: ["specviz/viewer/js/**/*.js"], languageOptions: { ecmaVersion: 2022, sourceType: "module", globals }, linterOptions, rules },
  { files: ["specviz/ui/classroom/board.js"], languageOptions: { ecmaVersion: 2022, sourceType: "module", globals }, linterOptions, rules },
  // Bodies of functions that Gradio calls.
  {
    files: ["specviz/ui/{tabs,widgets}/*.js"],
    languageOptions: { ecmaVersion: 2022, sourceType: "script", globals: { ...globals, ...COMPONENT } },
    linterOptions,
    rules,
  },
  // For old phones.
  {
    files: ["specviz/ui/classroom/phone.js"],
    languageOptions: { ecmaVersion: 2015, sourceType: "script", globals: { ...globals, Uint8Array: "readonly", XMLHttpRequest: "readonly" } },
    linterOptions,
    rules: { ...rules, "no-unused-vars": ["error", { caughtErrors: "none" }], "no-var": "off", "prefer-const": "off" },
  },
  { files: ["specviz/ui/page.js"], languageOptions: { ecmaVersion: 2022, sourceType: "script", globals }, linterOptions, rules },
];
