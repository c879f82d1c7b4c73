// Written by specviz/trace/json_schema.py.
declare namespace Trace {
  type integer = number;
  /** The request, the models and the machine. parameters are the method's; warnings are always shown on screen. */
  interface Run {
    /** Version of this format. */ v: number;
    /** Lines before this one. */ seq: integer;
    kind: "run";
    modality: "text" | "vision_language" | "image";
    target: string;
    method: string;
    title: string;
    exactness: "exact" | "relaxed";
    parameters: Record<string, string | boolean | integer | number | null>;
    sampling: Sampling;
    device: string;
    dtype: string;
    tier: string;
    prompt: string;
    prompt_pieces: string[];
    max_new_tokens: integer;
    bound: string;
    draft: string;
    chat_template: boolean;
    tokenizer_hash: string;
    libraries: Record<string, string>;
    machine: string;
    recorded_at: string;
    warnings: string[];
    grid: [integer, integer] | null;
    guidance: number | null;
    codebook: Codebook | null;
  }
  /** Settings for choosing tokens. temperature 0 is greedy; top_k 0 and top_p 1 keep every token. */
  interface Sampling {
    temperature: number;
    top_k: integer;
    top_p: number;
    seed: integer;
    /** Number of earlier runs that the drafter learned from, 0 if absent; its draws are keyed by it as well as by the seed. */ generation: integer;
  }
  /** The picture codes of an image run, laid out as a map. */
  interface Codebook {
    size: integer;
    places: string;
    colours: string;
    patches: string;
  }
  /** One round: root, drafted tree, one target pass, verdict, commit, bonus token. */
  interface Step {
    /** Version of this format. */ v: number;
    /** Lines before this one. */ seq: integer;
    kind: "step";
    /** Number of steps before this one. */ index: integer;
    /** Absolute position of the root, which is also the length of the target's cache before the pass. */ position: integer;
    /** The draft tree, root first, parents before children. */ nodes: Node[];
    /** Accepted nodes from the root's child downwards. */ path: integer[];
    bonus: Bonus | null;
    /** Tokens added to the output: path, then bonus, cut at the end. */ emitted: integer[];
    pieces: string[];
    rule: "none" | "greedy" | "match" | "ratio" | "without_replacement" | "traversal" | "typical" | "relaxed" | "local";
    time: Nanoseconds;
    cut: "eos" | "budget" | "context" | null;
    draft_calls: integer;
    /** Number of drafted nodes that the target scored. */ verified: integer;
    /** Number of rows in the target's pass, root and padding included. */ padded: integer;
    rows: TargetRow[];
    notes: Note[];
    /** Number of target passes in this step; 1 if absent. */ passes: integer;
    /** Whether drafts were chosen, not sampled: the rule treated each as a point mass, and q is merely a confidence. */ certain: boolean;
  }
  /** One node of a draft tree. */
  type Node = [integer, integer, string, number | null, number | null, "root" | "accepted" | "relaxed" | "rejected" | "skipped" | "pruned" | "resampled", number | null, number | null, [integer, integer] | null];
  /** The target's own token that ends a step, a child of the node at which the walk ended. */
  type Bonus = [integer, integer, string, number | null, "target" | "residual", [integer, integer] | null];
  /** Time of one step by phase, in nanoseconds. host is the rest of the step's wall time, except for aside: the time spent on data that is only shown, which no total includes. */
  type Nanoseconds = [integer, integer, integer, integer, integer, integer];
  /** The target's prediction after node: its top few tokens, most likely first. Only for visited nodes. */
  type TargetRow = [integer, Candidate[]];
  /** A token that the target ranked high at some node: id, text, and probability as in Node.p. */
  type Candidate = [integer, string, number];
  /** A method's own data on a step. A note of a type listed here has that type's fields and may have more; any other note is plain JSON. No note is nested more than 8 levels deep or holds more than 16384 values. */
  interface Note {
    type: string;
  }
  /** The end of a run. metrics is the result of trace.metrics.summarise for the steps. */
  interface End {
    /** Version of this format. */ v: number;
    /** Lines before this one. */ seq: integer;
    kind: "end";
    reason: "eos" | "budget" | "context" | "cancelled" | "time_limit" | "error" | "out_of_memory";
    output_ids: integer[];
    text: string;
    prefill_ns: integer;
    metrics: Metrics;
    message: string;
    baseline: Baseline | null;
    /** An image run's picture: base64 of a PNG. */ picture: string;
    /** Number of passes captured as CUDA graphs in this run. The model's next run replays them. */ captures: integer;
    /** Time spent on these captures; neither the steps nor the prefill include it. */ capture_ns: integer;
    /** A caveat for readers of the timings, if other programs kept the run waiting. */ busy: string;
  }
  /** The target's own autoregressive run. */
  interface Baseline {
    token_ns: integer[];
    prefill_ns: integer;
    equal: boolean;
    first_divergence: Divergence | null;
    /** Its text by token from the first divergence on; absent if it did not diverge, or if the text was not recorded. */ pieces: string[];
    /** The picture of an image run's baseline, base64 of a PNG; absent if it equals the run's own picture. */ picture: string;
    /** Time spent capturing passes as CUDA graphs; no other time includes it. */ capture_ns: integer;
  }
  /** The first divergence of a run from its baseline. */
  interface Divergence {
    position: integer;
    gap: number | null;
  }
  /** Metrics computed from the steps. Further keys may follow; an undefined number is null. */
  interface Metrics {
    accepted: integer;
    accepted_by_depth: (number | null)[];
    baseline_tokens_per_second: number | null;
    cut_steps: integer;
    draft_calls: integer;
    emitted: integer;
    first_divergence: Divergence | null;
    histogram: integer[];
    node_efficiency: number | null;
    passes: integer;
    predicted_speedup: number | null;
    reason: "eos" | "budget" | "context" | "cancelled" | "time_limit" | "error" | "out_of_memory";
    seconds: PhaseSeconds;
    shares: PhaseShares;
    speedup: number | null;
    steps: integer;
    tau: number | null;
    tokens_per_second: number | null;
    verified: integer;
  }
  /** Seconds of a run by phase; ``total`` leaves out the prefill and the capturing of CUDA graphs, if any. */
  interface PhaseSeconds {
    capture: number;
    commit: number;
    draft: number;
    host: number;
    judge: number;
    prefill: number;
    total: number;
    verify: number;
  }
  /** Fractions of a run's time by phase. */
  interface PhaseShares {
    commit: number | null;
    draft: number | null;
    host: number | null;
    judge: number | null;
    verify: number | null;
  }
  /** Expansion and reranking of a dynamic tree, by EAGLE-2 (arXiv 2406.16858) and its successors. */
  interface GrowthNote {
    type: "growth";
    /** [level, beam]: nodes expanded at each level, starting with the root's. */ beams: integer[][];
    /** [node]: log of the drafter's probability of the whole path, pruned nodes included; for sampled tokens, log of the expected probability that the path is accepted. */ value: number[];
    /** Number of nodes sent to the target, root included; they come before the pruned ones. */ kept: integer;
    /** Number of drafted candidates, without the root. */ considered: integer;
    depth: TreeDepth | null;
  }
  /** A tree's default depth, chosen from the calibration in trees.depth_profile if there is one. */
  interface TreeDepth {
    levels: integer;
    nodes: integer | null;
    /** Predicted tokens per pass. */ tau: number | null;
    /** Predicted speed-up over the target without drafts; null without a calibration. */ gain: number | null;
    /** Cost of a drafter forward, in target passes of one token. */ forward: number | null;
  }
  /** Beam mass by level, and the level at which it stopped the growth, by Dynamic Depth Decoding (arXiv 2409.00142). */
  interface BeamMassNote {
    type: "beam_mass";
    /** [level]: log of the beam's probability mass, level 1 first. */ mass: number[];
    /** Levels, from 1, whose mass was compared with the threshold. */ tested: integer[];
    /** Log of a probability mass. */ threshold: number;
    /** Last level, if the threshold stopped the growth. */ stopped: integer | null;
    /** Deepest possible level. */ limit: integer;
    /** [level]: fraction of the calibration's beams below the threshold. */ below: number[];
    /** Cost of a drafter forward, in target passes of one token, if the threshold was derived from it. */ forward: number | null;
  }
  /** Tree nodes, grouped by the drafter forward that proposed them, by Falcon (arXiv 2412.12639). */
  interface BlocksNote {
    type: "blocks";
    blocks: Block[];
    /** Levels per forward. */ width: integer;
  }
  /** Nodes drafted by one forward, pruned ones included. depths are the first and last level. */
  interface Block {
    nodes: integer[];
    depths: [integer, integer];
  }
  /** Sources of a tree merged from several drafters and memories, by READER (arXiv 2508.09072). */
  interface MergedTreeNote {
    type: "merged_tree";
    /** [node]: "root", or its sources joined by plus signs: drafter, context, outputs. */ sources: string[];
    /** [node]: estimated probability that the whole path is accepted. */ value: number[];
    /** Number of nodes sent to the target, root included; they come before the pruned ones. */ kept: integer;
    considered: integer;
    /** Predicted tokens per pass. */ expected: number;
    /** Whether the tree size was fitted to the cost curve; if not, it is a parameter. */ fitted: boolean;
    grafts: Graft[];
  }
  /** A continuation of count tokens retrieved for node, after a match of matched tokens. */
  interface Graft {
    node: integer;
    source: string;
    matched: integer;
    count: integer;
  }
  /** Paths through a block drafter's distributions, most probable first, by DDTree (arXiv 2604.12989): the first n form the tree of n nodes. */
  interface FrontierNote {
    type: "frontier";
    /** [node]: log of the drafter's probability of the whole path, the root's first, pruned nodes last. */ value: number[];
    /** Number of nodes sent to the target, root included; they come before the pruned ones. */ kept: integer;
    /** Number of ranked paths, without the root. */ considered: integer;
    /** [depth]: ratio of accepted to expected nodes in the run's earlier rounds, depth 1 first. */ reach: number[];
    /** [depth]: top tokens, the same under every node. */ places: Offer[];
  }
  /** Tokens of one position, most likely first, with the drafter's probability of each. */
  interface Offer {
    tokens: integer[];
    probability: number[];
    texts: string[];
  }
  /** Predictions of parallel heads, from whose Cartesian product the tree is taken, by Medusa (arXiv 2401.10774). */
  interface HeadsNote {
    type: "heads";
    heads: HeadOffer[];
  }
  /** Predictions of one Medusa head; head 1 predicts the token after the root. */
  interface HeadOffer {
    head: integer;
    tokens: integer[];
    probability: number[];
    texts: string[];
  }
  /** Matched suffix and copied continuation, by prompt lookup decoding. A length of 0 means no match. */
  interface CopyNote {
    type: "copy";
    suffix_start: integer;
    suffix_length: integer;
    /** Position of the first copied token. */ source: integer;
    /** Number of copied tokens. */ length: integer;
  }
  /** The best match in the suffix trees, and its score, by SuffixDecoding (arXiv 2411.04975). */
  interface SuffixNote {
    type: "suffix";
    source: "context" | "outputs" | "none";
    suffix_start: integer;
    suffix_length: integer;
    occurrences: integer;
    /** Maximum draft length for a match of this length. */ limit: integer;
    /** Expected number of accepted tokens, estimated from the tree's counts. */ score: number;
    threshold: number | null;
    used: boolean;
    /** Best score of each memory. */ scores: Record<string, number>;
    tried: SuffixTrial[];
    rows: SuffixRow[];
    /** Number of stored tokens of earlier outputs. */ remembered: integer;
  }
  /** Score of the draft after a match of length tokens; limit is its maximum length. */
  interface SuffixTrial {
    length: integer;
    limit: integer;
    score: number;
  }
  /** Continuations counted at a node: counts by token, count in total, others not listed. */
  interface SuffixRow {
    node: integer;
    count: integer;
    tokens: integer[];
    counts: integer[];
    others: integer;
    texts: string[];
  }
  /** Rows of the n-gram store that a tree was sampled from, by STAND (arXiv 2506.04708). */
  interface NgramRowsNote {
    type: "ngram_rows";
    rows: NgramRow[];
    /** Number of n-grams in the store. */ entries: integer;
  }
  /** A row of the store and the children sampled from it without replacement. */
  interface NgramRow {
    node: integer;
    order: integer;
    tokens: integer[];
    probability: number[];
    perturbed: number[];
    picked: integer;
    order_taken: integer[];
    texts: string[];
  }
  /** Rows of the adjacency matrix that the tree was built from, by Token Recycling (arXiv 2408.08696). */
  interface SuccessorsNote {
    type: "successors";
    rows: SuccessorRow[];
    /** Number of rows that the last pass updated. */ updated: integer;
  }
  /** The matrix row of a node's token; its first used successors became children. */
  interface SuccessorRow {
    node: integer;
    token: integer;
    tokens: integer[];
    used: integer;
    text: string;
    texts: string[];
  }
  /** Distributions of a block of masks after one forward, by DEER (arXiv 2512.15176), DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147). */
  interface DenoisedNote {
    type: "denoised";
    places: Offer[];
    /** [place]: probabilities of the same tokens given the previous token; empty if a place does not depend on it. */ given: number[][];
    /** [place]: predicted acceptance rate, from which the block's length was chosen. */ rates: number[];
    /** Number of drafted tokens, if only the first of them were sent to the target; null if all were. */ considered: integer | null;
  }
  /** Beam search through a block's candidates, and the next draft length, by DiffuSpec (arXiv 2510.02358). */
  interface LatticeNote {
    type: "lattice";
    columns: LatticeColumn[];
    beams: LatticeBeams[];
    /** Number of positions up to a likely end of text, where the lattice stops; null without one. */ fence: integer | null;
    gauge: DraftLength;
    /** Weight of the drafter's log-probability in a score; the n-gram model has the rest. */ weight: number;
    /** Whether the path ends the text; missing in older traces. */ ended: boolean | null;
  }
  /** The top candidates at one position of the block; the search considered size of them. */
  interface LatticeColumn {
    tokens: integer[];
    probability: number[];
    size: integer;
    texts: string[];
  }
  /** The best beams after one position, best first: each beam's parent, row in the column, and score. */
  interface LatticeBeams {
    parents: integer[];
    picks: integer[];
    score: number[];
  }
  /** Number of masks in the block, its bounds, and the running means that determine the next length. */
  interface DraftLength {
    length: integer;
    shortest: integer;
    longest: integer;
    drafted: number;
    accepted: number;
    adaptive: boolean;
  }
  /** Rows of a picture that this step completed, in any image run. */
  interface CanvasNote {
    type: "canvas";
    /** First row, from 0. */ row: integer;
    rows: integer;
    /** Number of codes generated so far. */ codes: integer;
    /** These rows as a base64-encoded PNG. */ png: string;
  }
  /** Coarse codes and the fine codes drafted from them, by MuLo-SD (arXiv 2601.05149). */
  interface CoarseCodesNote {
    type: "coarse_codes";
    codes: integer[];
    fine: integer[];
  }
  /** Window of codes resampled in each pass, by Speculative Jacobi Decoding (arXiv 2410.01699). */
  interface JacobiWindowNote {
    type: "jacobi_window";
    codes: integer[];
    /** Number of codes, from the window's start, that were sampled from the last pass's distributions. */ redrawn: integer;
  }
  /** A prompt's preprocessed picture and the positions of its tokens, in the first step of a vision-language run. */
  interface PictureNote {
    type: "picture";
    /** Base64, split into pieces because a note's texts have at most 4096 characters. */ png: string[];
    /** Width and height in pixels. */ size: [integer, integer];
    /** Rows and columns of patches; zeros if they do not form a regular grid. */ grid: [integer, integer];
    spans: [integer, integer][];
    /** Number of prompt tokens. */ prompt: integer;
    encoding_ns: integer;
    /** [patch]: left, top, right and bottom as fractions of the picture, if the patches do not form a regular grid. */ boxes: [number, number, number, number][] | null;
  }
  /** The prompt as target and drafter read it, with the image tokens that the drafter sees, by DREAM, HiViS and visual drafters. */
  interface VisualTokensNote {
    type: "visual_tokens";
    target: integer;
    drafter: integer;
    /** Spans of image tokens. */ visual: [integer, integer][];
    /** Spans of image tokens visible to the drafter. */ kept: [integer, integer][];
    /** Spans of other tokens hidden from the drafter. */ unseen: [integer, integer][];
  }
  /** A drafter's attention to the picture and, in the first step, the entropy of the target's, by DREAM (arXiv 2505.19201). */
  interface AttentionEntropyNote {
    type: "attention_entropy";
    looks: AttentionLook[];
    /** [layer, position]: entropy of the target's attention. */ entropy: number[][] | null;
    /** Candidate layers for the drafter's feature. */ middle: integer[] | null;
    /** [position]: the candidate layer with the lowest entropy. */ chosen: integer[] | null;
  }
  /** The drafter's attention after tokens: its sum over the picture, and the largest weights as [position, weight]. */
  interface AttentionLook {
    tokens: integer[];
    picture: number;
    at: [integer, number][];
    texts: string[];
  }
  /** Step embeddings, and the acceptance of drafts with and without them, by HiViS (arXiv 2509.23928). */
  interface StepEmbeddingsNote {
    type: "step_embeddings";
    /** [depth]: norm of the learned vector. */ norms: number[];
    /** [depth]: rounds in which a node at this depth was judged; kept: those in which one was accepted. */ reached: integer[];
    kept: integer[];
    /** [depth]: tokens that both drafters predicted; with and without count the correct ones with and without the vectors. */ asked: integer[] | null;
    with: integer[] | null;
    without: integer[] | null;
  }
  /** Drafter, intermediate model and target in one round, by Polybasic (arXiv 2510.26527). */
  interface CascadeNote {
    type: "cascade";
    /** The intermediate model. */ middle: string;
    /** μ: number of buffered tokens that triggers a target pass. */ gathered: integer;
    /** Number of tokens sent to the target. */ length: integer;
    passes: CascadePass[];
    so_far: CascadeTotals | null;
    forecast: CascadeCosts | null;
  }
  /** One pass of the intermediate model over a draft: tokens are the accepted ones and its own token. Times are in ms. */
  interface CascadePass {
    drafted: integer;
    kept: integer;
    calls: integer;
    tokens: integer[];
    drafting: number;
    verifying: number;
    texts: string[];
  }
  /** Totals of the run so far, times in ms: target rounds, tokens kept and buffered, intermediate passes, forwards. */
  interface CascadeTotals {
    rounds: integer;
    kept: integer;
    buffered: integer;
    passes: integer;
    calls: integer;
    drafting: number;
    verifying: number;
  }
  /** Calibrated costs and acceptance of each level: milliseconds per pass, tokens per pass, and the two conditions. */
  interface CascadeCosts {
    target: number;
    target_block: number;
    middle: number;
    drafter: number;
    /** Tokens per target pass without the intermediate model; with: with it. */ without: number;
    with: number;
    /** Tokens per intermediate pass that the target accepts. */ below: number;
    /** Cost of an intermediate pass in target passes; the published condition holds below bound. */ ratio: number;
    bound: number;
    margin: number;
    gain: number;
    /** Milliseconds per token without the intermediate model; missing in older traces. */ before: number | null;
  }
  /** Layers of the draft model that ran in parallel, and the repair of its cache, by EasySpec (arXiv 2502.02493). */
  interface LayerGroupsNote {
    type: "layer_groups";
    layers: integer;
    /** [stage, layer]: layers, from 0, of each stage. */ groups: integer[][];
    stages: integer;
    /** Whether fuzzy cache entries are repaired once a round. */ calibrated: boolean;
    cached: integer;
    drafted: integer;
    devices: string[];
    /** Tokens of the exact pass, of which repaired had fuzzy entries; fuzzy entries remain. */ exact: integer | null;
    repaired: integer | null;
    fuzzy: integer | null;
    /** [layer, token]: cosine between the fuzzy and the exact entry. */ likeness: number[][] | null;
  }
  /** The drafter selected among several, and the expected acceptance of each, by HedgeSpec (arXiv 2510.20064). */
  interface DrafterSelectionNote {
    type: "drafter_selection";
    names: string[];
    /** [arm]: probability of being selected. */ chances: number[];
    /** The arm that drafted. */ drafted: integer;
    /** Whether the learner receives feedback on all arms rather than only on the selected one. */ informed: boolean;
    loss: string;
    /** Maximum chain length. */ ahead: integer;
    /** Tokens emitted in this round. */ tokens: integer[];
    /** [arm, place]: acceptance probability of each arm's chain along the emitted tokens. */ ghosts: number[][];
    /** [arm]: expected tokens per pass. */ expected: number[];
    /** Number of chains whose loss became known. */ settled: integer | null;
    waiting: Waiting[];
    /** [arm]: chances of the next round. */ after: number[];
    texts: string[];
  }
  /** A chain in the delay queue: its start, and the number of its positions already judged. */
  interface Waiting {
    place: integer;
    known: integer;
  }
  /** The half of a hybrid drafter that drafted: a suffix tree, or a network that reads one state, by OWL (arXiv 2510.07535). */
  interface LastStateNote {
    type: "last_state";
    half: "suffix" | "tree";
    /** Number of tokens in the text so far. */ length: integer;
    /** Score of the suffix tree's draft; null without a suffix tree. */ score: number | null;
    threshold: number | null;
    /** Whether the drafter reads the state of a [SPEC] token. */ probed: boolean;
  }
  /** Cache of several runs in one batch, after a round of batched decoding. */
  interface BatchCacheNote {
    type: "batch_cache";
    /** The row of this run. */ row: integer;
    round: integer;
    /** Number of rounds between sweeps; 0 means never. */ every: integer;
    swept: boolean;
    rows: BatchRowCache[];
  }
  /** A row's cache: the lengths of its contiguous runs of entries, and the holes between them. */
  interface BatchRowCache {
    row: integer;
    runs: integer[];
    holes: integer;
  }
  /** Decay along every path of a tree in a state-space target, by STree (arXiv 2505.14969). */
  interface DecayMaskNote {
    type: "decay_mask";
    heads: DecayHead[];
    /** Width of the convolution. */ taps: integer;
    /** [layer]: "state" or "attention". */ layers: string[];
    /** Size of one copy of the state; per_node_bytes: of a copy per node; replay_bytes: of the data stored for a replay instead. */ state_bytes: integer;
    per_node_bytes: integer;
    replay_bytes: integer;
  }
  /** A head of a state-space layer: fade [node] is the log of the carried state's remaining fraction. */
  interface DecayHead {
    name: string;
    layer: integer;
    head: integer;
    fade: number[];
  }
  /** A production engine's record of a round, which other requests may have shared. */
  interface ServedNote {
    type: "served";
    /** Number of requests in the target's pass; null if unknown. */ batch: integer | null;
    /** Number of rejected draft tokens whose ids are unknown. */ untold: integer;
    /** Number of tokens drafted in this round; null if unknown. */ drafted: integer | null;
  }
  /** A server's counters over all its requests, sampled during this step. */
  interface ServedCountersNote {
    type: "served_counters";
    samples: CounterSample[];
  }
  /** Increase in a server's counters over the first ms milliseconds of the run. */
  interface CounterSample {
    ms: number;
    /** Drafts verified. */ drafts: integer;
    /** [draft position]: drafts whose token at this position was accepted. */ accepted: integer[];
  }
  /** Both distributions where rejection sampling judged children, by speculative sampling (arXiv 2211.17192). */
  interface OverlapNote {
    type: "overlap";
    positions: OverlapPosition[];
  }
  /** Target and drafter after node: p and q of the most important tokens, and the sum of min(p, q) over all tokens. */
  interface OverlapPosition {
    node: integer;
    tokens: integer[];
    p: number[];
    q: number[];
    overlap: number;
    texts: string[];
  }
  /** Nodes that typical acceptance judged, by Medusa (arXiv 2401.10774, section 2.3.1). */
  interface TypicalAcceptanceNote {
    type: "typical_acceptance";
    positions: TypicalPosition[];
  }
  /** A judged node: the target's p of its token, the threshold, and the entropy that determines it, in nats. */
  interface TypicalPosition {
    node: integer;
    token: integer;
    p: number;
    threshold: number;
    entropy: number;
    text: string;
  }
  /** Verdicts from leaf to root, in order, by Traversal Verification (arXiv 2505.12398). */
  interface TraversalNote {
    type: "traversal";
    visits: Visit[];
    /** Nodes on the path that the top-down rule would not have reached. */ rescued: integer[];
    /** Path length of the top-down rule with the same draws. */ top_down: integer;
  }
  /** A node's verdict in the walk from the leaves upwards; a node that passed lies above the accepted one. */
  interface Visit {
    node: integer;
    /** Acceptance weight on entry to the node's subtree; weight: that after its children failed. */ start: number | null;
    weight: number | null;
    draw: number | null;
    outcome: "accepted" | "failed" | "passed";
  }
  /** Reward of the drafted tree, the log-sum-exp of its branches' expected lengths, by GTO (arXiv 2509.22134). */
  interface TreeRewardNote {
    type: "tree_reward";
    reward: number;
    /** Reward of the reference tree. */ before: number | null;
    branches: Branch[];
    reference: ReferenceTree | null;
  }
  /** A leaf and the expected acceptance length of the branch that ends in it. */
  interface Branch {
    node: integer;
    length: number;
  }
  /** The tree that another drafter proposed from the same root. */
  interface ReferenceTree {
    tokens: integer[];
    parents: integer[];
    texts: string[];
  }
  /** Codes judged with the probability of their latent neighbours, by LANTERN (arXiv 2410.03355) and LANTERN++. */
  interface RelaxedNote {
    type: "relaxed";
    /** Number of neighbours considered. */ k: integer;
    /** Form of the residual: exact, aggregated, repository. */ form: string;
    nodes: RelaxedJudgement[];
    delta: number | null;
    factor: number | null;
  }
  /** A judged code with its nearest latent codes: enough data to judge it again under another limit. */
  interface RelaxedJudgement {
    node: integer;
    p: number;
    q: number;
    /** Maximum probability added by the nearest codes. */ limit: number;
    count: integer;
    moved: number;
    /** The nearest codes, nearest first, as base64 of little-endian 16-bit numbers; older traces list the first ten. */ near: string | integer[];
    /** The target's probability of the first few of them. */ mass: number[];
    /** [number of nearest codes, their total probability], for several such numbers. */ sums: [integer, number][];
  }
  /** Islands of rejected codes in an image block, resampled in waves, by MuLo-SD (arXiv 2601.05149). */
  interface LocalVerificationNote {
    type: "local_verification";
    /** The target's probability of the code and its pool nearest ones; below tau the code fails. */ mass: number[];
    tau: number;
    pool: integer;
    /** Rows and columns around a rejected code that are resampled with it. */ radius: integer;
    /** Whether stale cache entries are renewed. */ rewritten: boolean;
    failed: integer[];
    islands: integer[][];
    /** The wave that resampled each code, 0 for none. */ waves: integer[];
    passes: integer;
    /** Nodes whose stale cache entries were not renewed; missing in older traces. */ stale: integer[] | null;
  }
  interface Notes {
    growth: GrowthNote;
    beam_mass: BeamMassNote;
    blocks: BlocksNote;
    merged_tree: MergedTreeNote;
    frontier: FrontierNote;
    heads: HeadsNote;
    copy: CopyNote;
    suffix: SuffixNote;
    ngram_rows: NgramRowsNote;
    successors: SuccessorsNote;
    denoised: DenoisedNote;
    lattice: LatticeNote;
    canvas: CanvasNote;
    coarse_codes: CoarseCodesNote;
    jacobi_window: JacobiWindowNote;
    picture: PictureNote;
    visual_tokens: VisualTokensNote;
    attention_entropy: AttentionEntropyNote;
    step_embeddings: StepEmbeddingsNote;
    cascade: CascadeNote;
    layer_groups: LayerGroupsNote;
    drafter_selection: DrafterSelectionNote;
    last_state: LastStateNote;
    batch_cache: BatchCacheNote;
    decay_mask: DecayMaskNote;
    served: ServedNote;
    served_counters: ServedCountersNote;
    overlap: OverlapNote;
    typical_acceptance: TypicalAcceptanceNote;
    traversal: TraversalNote;
    tree_reward: TreeRewardNote;
    relaxed: RelaxedNote;
    local_verification: LocalVerificationNote;
  }
}
