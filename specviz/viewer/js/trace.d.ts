// Written by specviz/trace/json_schema.py.
declare namespace Trace {
  type integer = number;
  /** The request, the models and the machine. */
  interface Run {
    /** Version of this format. */ v: number;
    /** Index of this line, from 0. */ seq: integer;
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
  /** Sampling settings. temperature 0 is greedy; top_k 0 and top_p 1 are off. */
  interface Sampling {
    temperature: number;
    top_k: integer;
    top_p: number;
    seed: integer;
    /** Number of earlier runs that the drafter learned from. The drafter's random draws depend on this number and the seed. */ generation: integer;
  }
  /** An image model's codebook as a two-dimensional map. Arrays are base64-encoded. */
  interface Codebook {
    /** Number of codes. */ size: integer;
    /** [code, 2] as little-endian 16-bit integers: the first two principal components, scaled to the full range. */ places: string;
    /** [code, rgb] as bytes: mean colour of the patch or, without patches, of an image that consists of this code only. */ colours: string;
    /** [code, row, column, rgb] as bytes: mean of the training images' cells with this code. Empty if not computed. */ patches: string;
  }
  /** One round: draft a tree, verify it, judge it and commit the accepted path and the bonus token. */
  interface Step {
    /** Version of this format. */ v: number;
    /** Index of this line, from 0. */ seq: integer;
    kind: "step";
    /** Number of steps before this one. */ index: integer;
    /** Absolute position of the root, equal to the length of the target's cache before the pass. */ position: integer;
    /** The draft tree, root first, parents before children. */ nodes: Node[];
    /** Accepted nodes, from the child of the root downwards. */ path: integer[];
    bonus: Bonus | null;
    /** Tokens added to the output: the path, then the bonus, cut at end-of-sequence, budget or context. */ emitted: integer[];
    pieces: string[];
    rule: "none" | "greedy" | "match" | "ratio" | "without_replacement" | "traversal" | "typical" | "relaxed" | "local";
    time: Nanoseconds;
    cut: "eos" | "budget" | "context" | null;
    draft_calls: integer;
    /** Number of drafted nodes that the target scored. */ verified: integer;
    /** Number of rows in the target's pass, including the root and padding. */ padded: integer;
    rows: TargetRow[];
    notes: Note[];
    /** Number of target passes; more than 1 if rejected positions of a block were resampled one by one. */ passes: integer;
    /** Whether drafts were chosen deterministically; the acceptance rule then treats each draft as a point mass (q = 1). */ certain: boolean;
  }
  /** One node of a draft tree. */
  type Node = [integer, integer, string, number | null, number | null, "root" | "accepted" | "relaxed" | "rejected" | "skipped" | "pruned" | "resampled", number | null, number | null, [integer, integer] | null];
  /** The token that the target adds at the end of a step, after the last accepted node. */
  type Bonus = [integer, integer, string, number | null, "target" | "residual", [integer, integer] | null];
  /** Time of one step by phase, in nanoseconds. */
  type Nanoseconds = [integer, integer, integer, integer, integer, integer];
  /** The target's most likely tokens after the visited node node, most likely first. */
  type TargetRow = [integer, Candidate[]];
  /** One of the target's most likely tokens after a node, with its probability as in Node.p. */
  type Candidate = [integer, string, number];
  /** Method-specific data on a step. A note of a listed type has the fields of that type and may have more; any other note is plain JSON. A note has at most 8 levels of nesting and 16384 values. */
  interface Note {
    type: string;
  }
  /** The end of a run. metrics is the result of trace.metrics.summarise. */
  interface End {
    /** Version of this format. */ v: number;
    /** Index of this line, from 0. */ seq: integer;
    kind: "end";
    reason: "eos" | "budget" | "context" | "cancelled" | "time_limit" | "error" | "out_of_memory";
    output_ids: integer[];
    text: string;
    prefill_ns: integer;
    metrics: Metrics;
    message: string;
    baseline: Baseline | null;
    /** The image of an image run, complete or partial, as a base64-encoded PNG. */ picture: string;
    /** Number of CUDA graphs captured in this run, which the model's next run replays. */ captures: integer;
    /** Time spent on CUDA graph capture, which neither the steps nor the prefill include. */ capture_ns: integer;
    /** Bytes in use: the peak of what was allocated on the GPU, or what the process held at the end; 0 if not recorded. */ memory: integer;
    /** A warning that other programs slowed this run down; empty if none did. */ busy: string;
  }
  /** The autoregressive run of the target, with the same prompt, seed, tier and process. */
  interface Baseline {
    token_ns: integer[];
    prefill_ns: integer;
    equal: boolean;
    first_divergence: Divergence | null;
    /** Text of each baseline token from the first divergence on; absent without a divergence or if not recorded. */ pieces: string[];
    /** The baseline's image as a base64-encoded PNG; absent if equal to the run's image. */ picture: string;
    /** Time spent on CUDA graph capture, which no other time includes. */ capture_ns: integer;
  }
  /** The first divergence of a run from the baseline. */
  interface Divergence {
    position: integer;
    gap: number | null;
  }
  /** Metrics computed from the steps. More keys are allowed, and undefined metrics are null. */
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
    seconds: Record<string, number>;
    shares: Record<string, number | null>;
    speedup: number | null;
    steps: integer;
    tau: number | null;
    tokens_per_second: number | null;
    verified: integer;
  }
  /** Expansion and reranking of a dynamic tree (EAGLE-2, arXiv 2406.16858, and its successors). */
  interface GrowthNote {
    type: "growth";
    /** [level, beam]: expanded nodes of each level, from the root downwards. */ beams: integer[][];
    /** [node]: log of the drafter's path probability. For sampled tokens, log of the path's expected acceptance probability. */ value: number[];
    /** Number of nodes sent to the target, including the root; these nodes come first, the pruned ones last. */ kept: integer;
    /** Number of drafted candidates, without the root. */ considered: integer;
    depth: TreeDepth | null;
  }
  /** Default depth of a tree, chosen from the drafter's calibration if available. */
  interface TreeDepth {
    levels: integer;
    nodes: integer | null;
    /** Predicted tokens per pass. */ tau: number | null;
    /** Predicted speed-up over autoregressive decoding; null without a calibration. */ gain: number | null;
    /** Cost of a drafter forward, in units of a single-token target pass. */ forward: number | null;
  }
  /** Probability mass of the beam at each level, which stops tree growth (Dynamic Depth Decoding, arXiv 2409.00142). */
  interface BeamMassNote {
    type: "beam_mass";
    /** [level]: log of the beam's probability mass, from level 1. */ mass: number[];
    /** Levels, from 1, at which the mass was compared with the threshold. */ tested: integer[];
    /** Log of the minimum probability mass. */ threshold: number;
    /** Level at which the threshold stopped the growth; null if the tree reached the maximum depth. */ stopped: integer | null;
    /** Maximum depth. */ limit: integer;
    /** [level]: fraction of beams in the calibration with a mass below the threshold. */ below: number[];
    /** Cost of a drafter forward, in units of a single-token target pass, if the threshold depends on this cost. */ forward: number | null;
  }
  /** Tree nodes grouped by drafter forward (Falcon, arXiv 2412.12639). */
  interface BlocksNote {
    type: "blocks";
    blocks: Block[];
    /** Number of levels per forward. */ width: integer;
  }
  /** Nodes drafted by one forward, including pruned nodes. depths: first and last level. */
  interface Block {
    nodes: integer[];
    depths: [integer, integer];
  }
  /** Sources of a tree merged from a drafter and retrieved texts (READER, arXiv 2508.09072). */
  interface MergedTreeNote {
    type: "merged_tree";
    /** [node]: "root", or the node's sources (drafter, context, outputs), joined by plus signs. */ sources: string[];
    /** [node]: estimated acceptance probability of the path from the root. */ value: number[];
    /** Number of nodes sent to the target, including the root; these nodes come first, the pruned ones last. */ kept: integer;
    considered: integer;
    /** Predicted tokens per pass. */ expected: number;
    /** Whether the tree size was chosen from the cost curve rather than by a parameter. */ fitted: boolean;
    grafts: Graft[];
  }
  /** count tokens retrieved as the continuation of node after a match of matched tokens. */
  interface Graft {
    node: integer;
    source: string;
    matched: integer;
    count: integer;
  }
  /** Best-first search over a block drafter's distributions (DDTree, arXiv 2604.12989). */
  interface FrontierNote {
    type: "frontier";
    /** [node]: log of the drafter's path probability. */ value: number[];
    /** Number of nodes sent to the target, including the root; these nodes come first, the pruned ones last. */ kept: integer;
    /** Number of ranked paths, without the root. */ considered: integer;
    /** [depth]: ratio of accepted to expected nodes in earlier rounds of the run, from depth 1. */ reach: number[];
    /** [depth]: top tokens, shared by the nodes of the level above. */ places: Offer[];
  }
  /** The drafter's candidates at one position, most likely first. */
  interface Offer {
    tokens: integer[];
    probability: number[];
    texts: string[];
  }
  /** Top tokens of parallel heads, whose Cartesian product contains the tree (Medusa, arXiv 2401.10774). */
  interface HeadsNote {
    type: "heads";
    heads: HeadOffer[];
  }
  /** Top tokens of one Medusa head. Head 1 predicts the token after the root. */
  interface HeadOffer {
    head: integer;
    tokens: integer[];
    probability: number[];
    texts: string[];
  }
  /** Matched suffix and copied continuation (prompt lookup decoding). length is 0 without a match. */
  interface CopyNote {
    type: "copy";
    suffix_start: integer;
    suffix_length: integer;
    /** Position of the first copied token. */ source: integer;
    /** Number of copied tokens. */ length: integer;
  }
  /** The best match in the suffix trees (SuffixDecoding, arXiv 2411.04975). */
  interface SuffixNote {
    type: "suffix";
    source: "context" | "outputs" | "none";
    suffix_start: integer;
    suffix_length: integer;
    occurrences: integer;
    /** Maximum draft length for a match of this length. */ limit: integer;
    /** Expected number of accepted tokens, estimated from the counts in the suffix tree. */ score: number;
    threshold: number | null;
    used: boolean;
    /** Best score by memory. */ scores: Record<string, number>;
    tried: SuffixTrial[];
    rows: SuffixRow[];
    /** Number of tokens of earlier outputs in memory. */ remembered: integer;
  }
  /** Score of the draft for a match of length tokens. limit: maximum draft length for this match. */
  interface SuffixTrial {
    length: integer;
    limit: integer;
    score: number;
  }
  /** Continuations of a node with counts in memory. count: total; others: number of continuations not listed. */
  interface SuffixRow {
    node: integer;
    count: integer;
    tokens: integer[];
    counts: integer[];
    others: integer;
    texts: string[];
  }
  /** Rows of the n-gram store from which a tree was sampled (STAND, arXiv 2506.04708). */
  interface NgramRowsNote {
    type: "ngram_rows";
    rows: NgramRow[];
    /** Number of n-grams in the store. */ entries: integer;
  }
  /** A row of the n-gram store, from which a node's children were sampled without replacement. */
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
  /** Rows of the adjacency matrix used in the tree (Token Recycling, arXiv 2408.08696). */
  interface SuccessorsNote {
    type: "successors";
    rows: SuccessorRow[];
    /** Number of rows updated after the previous pass. */ updated: integer;
  }
  /** Successors of a node's token in the adjacency matrix. The first used became children. */
  interface SuccessorRow {
    node: integer;
    token: integer;
    tokens: integer[];
    used: integer;
    text: string;
    texts: string[];
  }
  /** Block drafted in one forward (DEER, arXiv 2512.15176; DFlash, arXiv 2602.06036; DSpark, arXiv 2607.05147). */
  interface DenoisedNote {
    type: "denoised";
    places: Offer[];
    /** [place]: probabilities of the tokens in places given the previous token; empty if independent of the previous token. */ given: number[][];
    /** [place]: predicted acceptance rate, which determines the length of the draft. */ rates: number[];
    /** Number of drafted tokens; null if all were sent to the target. */ considered: integer | null;
  }
  /** Beam search over the tokens of a block (DiffuSpec, arXiv 2510.02358). gauge: next draft length. */
  interface LatticeNote {
    type: "lattice";
    columns: LatticeColumn[];
    beams: LatticeBeams[];
    /** Number of positions up to a likely end of text, where the search stops; null without a likely end. */ fence: integer | null;
    gauge: DraftLength;
    /** Weight of the drafter's log-probability in a score; the n-gram model has weight 1 - weight. */ weight: number;
    /** Whether the best path ends the text; missing in older traces. */ ended: boolean | null;
  }
  /** The top tokens at one position of the block. The beam search considered size tokens. */
  interface LatticeColumn {
    tokens: integer[];
    probability: number[];
    size: integer;
    texts: string[];
  }
  /** The best beams after one position, best first. parents: beams of the position before; picks: rows of the column. */
  interface LatticeBeams {
    parents: integer[];
    picks: integer[];
    score: number[];
  }
  /** Block length, the bounds on the length, and the running means that determine the next length. */
  interface DraftLength {
    length: integer;
    shortest: integer;
    longest: integer;
    drafted: number;
    accepted: number;
    adaptive: boolean;
  }
  /** Image rows to redraw after this step. */
  interface CanvasNote {
    type: "canvas";
    /** First of the rows, from 0. */ row: integer;
    rows: integer;
    /** Number of codes generated so far. */ codes: integer;
    /** The rows as a base64-encoded PNG. */ png: string;
  }
  /** Coarse codes and the fine codes drafted from them (MuLo-SD, arXiv 2601.05149). */
  interface CoarseCodesNote {
    type: "coarse_codes";
    codes: integer[];
    fine: integer[];
  }
  /** Window of draft codes, resampled in each pass (Speculative Jacobi Decoding, arXiv 2410.01699). */
  interface JacobiWindowNote {
    type: "jacobi_window";
    codes: integer[];
    /** Number of codes, from the start of the window, that were sampled from the previous pass's distributions. */ redrawn: integer;
  }
  /** The preprocessed image of a prompt and the positions of the image tokens, in the first step of a vision-language run. */
  interface PictureNote {
    type: "picture";
    /** Base64-encoded PNG, split into strings of at most 4096 characters. */ png: string[];
    /** Width and height in pixels. */ size: [integer, integer];
    /** Rows and columns of patches; zeros without a regular grid. */ grid: [integer, integer];
    spans: [integer, integer][];
    /** Number of prompt tokens. */ prompt: integer;
    encoding_ns: integer;
    /** [patch]: left, top, right and bottom edges as fractions of the image, if the patches do not form a regular grid. */ boxes: [number, number, number, number][] | null;
  }
  /** Prompt tokens visible to the drafter (DREAM, HiViS and other drafters with visual context). */
  interface VisualTokensNote {
    type: "visual_tokens";
    target: integer;
    drafter: integer;
    /** Spans of image tokens. */ visual: [integer, integer][];
    /** Spans of image tokens visible to the drafter. */ kept: [integer, integer][];
    /** Spans of other tokens hidden from the drafter. */ unseen: [integer, integer][];
  }
  /** The drafter's attention to the image and, in the first step, the entropy of the target's attention (DREAM, arXiv 2505.19201). */
  interface AttentionEntropyNote {
    type: "attention_entropy";
    looks: AttentionLook[];
    /** [layer, position]: entropy of the target's attention. */ entropy: number[][] | null;
    /** Candidate target layers for the drafter's input features. */ middle: integer[] | null;
    /** [position]: the candidate layer with the lowest entropy. */ chosen: integer[] | null;
  }
  /** The drafter's attention after tokens. picture: weight on the image; at: largest [position, weight] pairs. */
  interface AttentionLook {
    tokens: integer[];
    picture: number;
    at: [integer, number][];
    texts: string[];
  }
  /** Step embeddings of the drafter, with counts over the run so far (HiViS, arXiv 2509.23928). */
  interface StepEmbeddingsNote {
    type: "step_embeddings";
    /** [depth]: norm of the step embedding. */ norms: number[];
    /** [depth]: number of rounds in which a node was judged. */ reached: integer[];
    /** [depth]: number of rounds in which a node was accepted. */ kept: integer[];
    /** [depth]: number of tokens predicted both with and without step embeddings. */ asked: integer[] | null;
    /** [depth]: number of correct predictions with step embeddings. */ with: integer[] | null;
    /** [depth]: number of correct predictions without step embeddings. */ without: integer[] | null;
  }
  /** Drafter, intermediate model and target in one round (Polybasic, arXiv 2510.26527). */
  interface CascadeNote {
    type: "cascade";
    /** Name of the intermediate model. */ middle: string;
    /** μ: number of buffered tokens that triggers a target pass. */ gathered: integer;
    /** Number of tokens sent to the target. */ length: integer;
    passes: CascadePass[];
    so_far: CascadeTotals | null;
    forecast: CascadeCosts | null;
  }
  /** One pass of the intermediate model over a draft, with times in ms. */
  interface CascadePass {
    drafted: integer;
    kept: integer;
    calls: integer;
    tokens: integer[];
    drafting: number;
    verifying: number;
    texts: string[];
  }
  /** Totals of the run so far, with times in ms. passes: intermediate model; calls: drafter forwards. */
  interface CascadeTotals {
    rounds: integer;
    kept: integer;
    buffered: integer;
    passes: integer;
    calls: integer;
    drafting: number;
    verifying: number;
  }
  /** Measured cost of each model in ms per pass, calibrated tokens per pass, and the conditions for an intermediate model. */
  interface CascadeCosts {
    target: number;
    target_block: number;
    middle: number;
    drafter: number;
    /** Tokens per target pass without the intermediate model. */ without: number;
    /** Tokens per target pass with the intermediate model. */ with: number;
    /** Tokens per intermediate pass that the target accepts. */ below: number;
    /** Cost of an intermediate pass in target passes; the paper's condition is a ratio below bound. */ ratio: number;
    bound: number;
    margin: number;
    gain: number;
    /** Milliseconds per token without the intermediate model; missing in older traces. */ before: number | null;
  }
  /** Groups of the draft model's layers that run in parallel, and the repair of the cache (EasySpec, arXiv 2502.02493). */
  interface LayerGroupsNote {
    type: "layer_groups";
    layers: integer;
    /** [stage, layer]: layer numbers, from 0. */ groups: integer[][];
    stages: integer;
    /** Whether fuzzy cache entries are repaired once per round. */ calibrated: boolean;
    cached: integer;
    drafted: integer;
    devices: string[];
    /** Number of tokens in the exact pass. */ exact: integer | null;
    /** Number of fuzzy cache entries that the exact pass replaced. */ repaired: integer | null;
    /** Number of fuzzy cache entries left. */ fuzzy: integer | null;
    /** [layer, token]: cosine similarity of the fuzzy and the exact entry. */ likeness: number[][] | null;
  }
  /** Online selection of a drafter (arm) by HedgeSpec (arXiv 2510.20064) or a bandit. */
  interface DrafterSelectionNote {
    type: "drafter_selection";
    names: string[];
    /** [arm]: selection probability. */ chances: number[];
    /** Selected arm. */ drafted: integer;
    /** Whether the learner receives feedback on all arms (full information) or only on the selected arm (bandit). */ informed: boolean;
    loss: string;
    /** Maximum chain length. */ ahead: integer;
    /** Tokens emitted in this round. */ tokens: integer[];
    /** [arm, place]: acceptance probability of each arm's chain along the emitted tokens. */ ghosts: number[][];
    /** [arm]: expected tokens per pass. */ expected: number[];
    /** Number of chains whose loss became known in this round. */ settled: integer | null;
    waiting: Waiting[];
    /** [arm]: selection probability in the next round. */ after: number[];
    texts: string[];
  }
  /** A chain in the delay queue. place: start position; known: number of positions already judged. */
  interface Waiting {
    place: integer;
    known: integer;
  }
  /** Draft by the suffix tree or by the network that reads the last state (OWL and HOWL, arXiv 2510.07535). */
  interface LastStateNote {
    type: "last_state";
    half: "suffix" | "tree";
    /** Length of the text so far, in tokens. */ length: integer;
    /** Score of the suffix tree's draft; null without a suffix tree. */ score: number | null;
    threshold: number | null;
    /** Whether the network's input is the state of a [SPEC] token. */ with_probe: boolean;
  }
  /** Shared cache of a batch after a round. */
  interface BatchCacheNote {
    type: "batch_cache";
    /** Row of this run. */ row: integer;
    round: integer;
    /** Number of rounds between compactions of the cache; 0 means never. */ every: integer;
    swept: boolean;
    rows: BatchRowCache[];
  }
  /** Cache of one row. runs: alternating lengths of kept slots and holes, kept first; holes: number of holes. */
  interface BatchRowCache {
    row: integer;
    runs: integer[];
    holes: integer;
  }
  /** Decay along every path of a tree in a state-space target (STree, arXiv 2505.14969). */
  interface DecayMaskNote {
    type: "decay_mask";
    heads: DecayHead[];
    /** Width of the convolution. */ taps: integer;
    /** [layer]: "state" or "attention". */ layers: string[];
    /** Size of one copy of the state. */ state_bytes: integer;
    /** Size of a separate state for every node. */ per_node_bytes: integer;
    /** Size of the data stored to recompute the state instead. */ replay_bytes: integer;
  }
  /** A head of a state-space layer. fade [node]: log of the fraction of the root's state that remains at the node. */
  interface DecayHead {
    name: string;
    layer: integer;
    head: integer;
    fade: number[];
  }
  /** A serving engine's data on a round. The round may include other requests. */
  interface ServedNote {
    type: "served";
    /** Number of requests in the target's pass; null if unknown. */ batch: integer | null;
    /** Number of rejected draft tokens with unknown ids. */ untold: integer;
    /** Number of draft tokens; null if unknown. */ drafted: integer | null;
  }
  /** Samples of a server's counters during this step. The counters cover all requests to the server. */
  interface ServedCountersNote {
    type: "served_counters";
    samples: CounterSample[];
  }
  /** Increase in a server's counters in the first ms milliseconds of the run. */
  interface CounterSample {
    ms: number;
    /** Number of verified drafts. */ drafts: integer;
    /** [draft position]: number of accepted tokens. */ accepted: integer[];
  }
  /** Target and draft distributions at the nodes whose children were judged (speculative sampling, arXiv 2211.17192). */
  interface OverlapNote {
    type: "overlap";
    positions: OverlapPosition[];
  }
  /** Distributions after node: p and q of the most likely tokens, and the sum of min(p, q) over the vocabulary. */
  interface OverlapPosition {
    node: integer;
    tokens: integer[];
    p: number[];
    q: number[];
    overlap: number;
    texts: string[];
  }
  /** Nodes judged by typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1). */
  interface TypicalAcceptanceNote {
    type: "typical_acceptance";
    positions: TypicalPosition[];
  }
  /** A judged node: the target's p of the node's token, the threshold, and the entropy in nats that determines the threshold. */
  interface TypicalPosition {
    node: integer;
    token: integer;
    p: number;
    threshold: number;
    entropy: number;
    text: string;
  }
  /** Verdicts in bottom-up order (Traversal Verification, arXiv 2505.12398). */
  interface TraversalNote {
    type: "traversal";
    visits: Visit[];
    /** Nodes on the path that the top-down rule would not have accepted. */ rescued: integer[];
    /** Path length of the top-down rule with the same draws. */ top_down: integer;
  }
  /** Verdict on a node in bottom-up order. outcome is "passed" for the ancestors of the accepted node. */
  interface Visit {
    node: integer;
    /** Acceptance weight before the node's subtree is judged. */ start: number | null;
    /** Acceptance weight after the node's children are rejected. */ weight: number | null;
    draw: number | null;
    outcome: "accepted" | "failed" | "passed";
  }
  /** Reward of a draft tree: log-sum-exp of the expected lengths of the branches (GTO, arXiv 2509.22134). */
  interface TreeRewardNote {
    type: "tree_reward";
    reward: number;
    /** Reward of the reference tree. */ before: number | null;
    branches: Branch[];
    reference: ReferenceTree | null;
  }
  /** A leaf node with the expected acceptance length of the path from the root. */
  interface Branch {
    node: integer;
    length: number;
  }
  /** The tree of the reference drafter from the same root. */
  interface ReferenceTree {
    tokens: integer[];
    parents: integer[];
    texts: string[];
  }
  /** Codes judged with the added probability of the nearest latent codes (LANTERN, arXiv 2410.03355, and LANTERN++). */
  interface RelaxedNote {
    type: "relaxed";
    /** Number of nearest codes considered. */ k: integer;
    /** Form of the residual: exact, aggregated or repository. */ form: string;
    nodes: RelaxedJudgement[];
    delta: number | null;
    factor: number | null;
  }
  /** A judged code and the nearest latent codes, with enough data to repeat the judgement under another limit. */
  interface RelaxedJudgement {
    node: integer;
    p: number;
    q: number;
    /** Maximum probability added by the nearest codes. */ limit: number;
    count: integer;
    moved: number;
    /** Nearest codes, nearest first, as base64 of little-endian 16-bit integers; a list of ten codes in older traces. */ near: string | integer[];
    /** The target's probabilities of the first codes in near. */ mass: number[];
    /** Pairs of n and the total probability of the n nearest codes. */ sums: [integer, number][];
  }
  /** Islands of rejected codes in a block of an image, resampled in waves (MuLo-SD, arXiv 2601.05149). */
  interface LocalVerificationNote {
    type: "local_verification";
    /** Total probability of a code and the pool nearest codes; a code fails below tau. */ mass: number[];
    tau: number;
    pool: integer;
    /** Number of rows and columns around a rejected code that are resampled too. */ radius: integer;
    /** Whether stale cache entries are recomputed. */ rewritten: boolean;
    failed: integer[];
    islands: integer[][];
    /** Wave in which each code was resampled, 0 for none. */ waves: integer[];
    passes: integer;
    /** Nodes whose stale cache entries were not recomputed; missing in older traces. */ stale: integer[] | null;
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
