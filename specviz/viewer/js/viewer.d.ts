// Types that the viewer's modules exchange. The records of a file are in trace.d.ts.
type Stage = import("./stage/stage.js").Stage;
type Handle = { update(text: string): void; stage: Stage; go(step: number, node?: NodeId): void; pick(node: NodeId): void; play(): void; pause(): void; flush(): void; destroy(): void };
type Book = NonNullable<ReturnType<typeof import("./kit/codes.js").of>>;
type Note = Trace.Notes[keyof Trace.Notes] | Refused;
/** A note that does not match its type, as received. */
interface Refused {
  type: null;
  source: { type: string };
}
type Child = Node | string | number | null | undefined | Child[];

/** A node of a step's tree, or its bonus. */
interface Guess<Id> {
  id: Id;
  parent: number;
  token: number;
  text: string;
  q: number | null;
  p: number | null;
  status: string;
  threshold: number | null;
  draw: number | null;
  grid: number[] | null;
  depth: number;
  children: number[];
  rank: number;
  source: string;
}
type TreeNode = Guess<number>;
type Bonus = Guess<"bonus">;
type AnyNode = TreeNode | Bonus;

/** A step as run/decode.js reads it. */
interface Step {
  index: number;
  position: number;
  nodes: TreeNode[];
  path: number[];
  emitted: number[];
  pieces: string[];
  rule: string;
  certain: boolean;
  times: number[];
  total: number;
  cut: string | null;
  calls: number;
  verified: number;
  padded: number;
  rows: Map<number, { token: number; text: string; p: number | null }[]>;
  notes: Note[];
  bonus: Bonus | null;
  origins: { kind: string; id: number | "bonus" }[];
  counts: Counts;
  /** Suffix of a count of pruned candidates that may be too low. */
  more: string;
  end: TreeNode;
  veiled: boolean;
  overruled: boolean;
}
interface Counts extends Record<string, number> {
  pruned: number;
  sent: number;
  /** Of those sent, the ones without a node. */
  unnamed: number;
  cut: number;
  drafted: number;
  kept: number;
}

/** What a control line says about a run, or why something went wrong. */
interface Notice {
  kind?: string;
  mode?: string;
  run: string;
  follow?: boolean;
  message: string;
  error: string;
  fraction: number | null;
  baseline?: string;
  watch?: string;
}

/** A run as far as it has been read. `starts` and `ends` are those of its steps on its clock, in nanoseconds. */
interface Recording {
  mode: string;
  run: Trace.Run | null;
  steps: Step[];
  starts: number[];
  ends: number[];
  lines: string[];
  end: Trace.End | null;
  problems: string[];
  notice: Notice | null;
  baseline: string;
  watch: string;
  coming: Notice | null;
  seen: Set<string>;
}
type Tail = (run: string, from: number, take: (text: string) => void, over: (why: string) => void) => () => void;

/** An item of a drawn tree: a node, the bonus or a count of what is hidden. */
interface Item {
  id: number | string;
  kind: string;
  node: AnyNode | Chip;
  parent: number | string;
  depth: number;
  children: Item[];
  hidden: number;
  form: string;
  label: string;
  bars: boolean;
  u: number;
  side: number;
  track: number;
  place: number;
  on: boolean;
  off: number;
  band: number;
  x: number;
  y: number;
  w: number;
  h: number;
  tall: number;
}

interface Element {
  /** The stage that mount() put into this host. */
  specviz?: Handle;
  /** Of the Methods tab: its race as a film. */
  film?(): import("./share/race.js").Film | null;
}
declare var specvizTail: ((path: string, ...request: Parameters<Tail>) => () => void) | undefined;

/** A part of the stage. `settle` comes after every panel has drawn, and may ask for the layout. */
interface Panel {
  update(changed: Set<string>): void;
  settle?(): void;
  destroy?(): void;
  measured?: Element;
}
interface Chip {
  text: string;
  status: string;
  parent: number;
  token?: number;
  p?: null;
  q?: null;
  grid?: null;
  children?: number[];
}
/** Items of a tree in their places, from tree/layout.js. */
interface Plan {
  items: Map<number | string, Item>;
  width: number;
  height: number;
  edges: Link[];
  form: string;
  grouped?: boolean;
}
interface Link {
  from: number | string;
  to: number | string;
  item: Item;
  path: string;
}
/** One contestant of a race, as run/raceLanes.js lines them up. */
interface RaceLane {
  trace: Recording;
  grid: [number, number] | null;
  total: number;
  count: number;
  name: string;
  kind: string;
  bursts: { at: number; upto: number }[];
  tokens: { token?: number; text: string; cell?: number[] | null }[];
  known: number;
  common?: number;
  picture: string;
  rival: RaceLane;
}
type NodeId = number | "bonus" | null;
interface Window {
  specvizTab?: string;
  specvizPage: { address(path: string): string; [part: string]: any };
  SpecvizViewer?: { mount(host: HTMLElement, options?: object): Handle; align(left: string, right: string, how: string): void; play?(host: HTMLElement, only?: any): void; read?(stage: Stage, box: HTMLElement): Panel; Table?: typeof import("./reading/table.js").Table; story?(host: HTMLElement): void; share?(box: HTMLElement, button: HTMLElement, page: object): void; field?(host: HTMLElement, ...page: any[]): void };
  gradio_config?: { root?: string };
}
