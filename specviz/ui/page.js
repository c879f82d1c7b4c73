// @ts-check
() => {
  const root = document.documentElement;
  const KEY = "specviz-theme";
  const store = { get: (key = KEY) => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (value, key = KEY) => { try { localStorage.setItem(key, value); } catch { /* a private window keeps nothing */ } } };

  /** The element nearest to an event's target that matches a selector. @param {any} event @param {string} selector @returns {HTMLElement | null} */
  const closest = ({ target }, selector) => (target && target.closest ? target.closest(selector) : null);

  /** @param {string} selector @returns {HTMLElement | null} */
  const find = (selector) => document.querySelector(selector);

  /** @param {string} selector @returns {NodeListOf<HTMLElement>} */
  const all = (selector) => document.querySelectorAll(selector);

  /** @param {string} name */
  function theme(name) {
    document.body.classList.toggle("dark", name === "dark");
    root.style.colorScheme = name;
    const button = find("#sp-theme");
    if (!button) return;
    button.title = name === "dark" ? "Use light colours" : "Use dark colours";
    button.setAttribute("aria-label", button.title);
  }

  const dark = () => document.body.classList.contains("dark");
  const themeParam = new URL(location.href).searchParams.get("__theme");
  const chosen = themeParam === "dark" || themeParam === "light" ? themeParam : store.get();
  theme(chosen || (dark() ? "dark" : "light"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => theme(store.get() || (event.matches ? "dark" : "light")));

  /** @param {string} id */
  const head = (id) => find(`#${id} button.label-wrap`);
  /** @param {string} id */
  const isOpen = (id) => Boolean(head(id)?.classList.contains("open"));

  /** Scroll the fold with this id to the top. */
  function reveal(id) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const fold = document.getElementById(id);
    if (fold) setTimeout(() => fold.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" }), 60);
  }

  /** Figures are drawn when their fold opens, so opening it again draws them in the new colours. */
  function redraw(id) {
    head(id)?.click();
    setTimeout(() => head(id)?.click(), 50);
  }

  /** Open the fold with this id, if it is closed, and show it. */
  function unfold(id) {
    if (isOpen(id)) reveal(id);
    else head(id)?.click();
  }

  document.addEventListener("click", (event) => {
    const skip = closest(event, ".sp-skip");
    if (skip) {
      event.preventDefault();
      const shown = (/** @type {string} */ some) => [...all(some)].find((one) => one.getClientRects().length);
      (shown(String(skip.dataset.to)) || shown("[role=tabpanel] :is(a[href], select, input, textarea, button)"))?.focus();
    }
    if (closest(event, ".sp-offer button")) {
      welcome(false);
      openTab()?.focus();
    }
    // A link to another tab, such as in a lesson.
    const link = closest(event, 'a[href^="?tab="]');
    if (link) {
      event.preventDefault();
      history.replaceState(history.state, "", String(link.getAttribute("href")));
      tabs().find((tab) => word(tab) === query().get("tab"))?.click();
    }
    const opener = closest(event, "[data-sp-open]");
    if (opener) unfold(String(opener.dataset.spOpen));
    // On a phone the stage is above the button, out of sight.
    if (closest(event, "#sp-run-live") && innerWidth <= 820) find("#sp-stage")?.scrollIntoView();
    if (!closest(event, "#sp-theme")) return;
    const next = dark() ? "light" : "dark";
    store.set(next);
    theme(next);
    for (const { id } of document.querySelectorAll(".sp-figures")) if (isOpen(id)) redraw(id);
  });

  // Gradio's drop-downs lose the focus once something is chosen; this puts it back. A choice by touch is left alone, because the
  // focus would bring the on-screen keyboard back, and so is one in Compare: Gradio sends another request on blur, whose answer
  // would undo the prompt that is typed next.
  /** @type {HTMLElement | null} */
  let choosing = null;
  /** @param {any} element @returns {HTMLElement | null} */
  const chooser = (element) => (element && element.matches("input[role=combobox]:not(.sp-compare *)") ? element : null);
  document.addEventListener("keydown", (event) => { choosing = event.key === "Enter" ? chooser(event.target) : null; }, true);
  document.addEventListener("pointerdown", (event) => {
    choosing = event.pointerType === "mouse" && closest(event, "[role=option]") ? chooser(document.activeElement) : null;
    // Their list opens on focus only, so one that already has the focus is blurred first.
    const pressed = chooser(event.target);
    if (pressed && pressed === document.activeElement && pressed.getAttribute("aria-expanded") === "false") pressed.blur();
  }, true);
  document.addEventListener("focusout", (event) => {
    const left = choosing;
    if (!left || event.target !== left) return;
    choosing = null;
    setTimeout(() => {
      if (document.activeElement !== document.body || !left.isConnected) return;
      left.focus({ preventScroll: true });
      left.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true })); // closes the list, which opens on focus
    });
  });

  /** The stage inside the component with this id; null before it is mounted. */
  const stage = (id) => {
    const host = document.querySelector(`${id} .specviz-host`);
    return host && host.specviz ? host.specviz.stage : null;
  };

  // A link to a step: ?trace=NAME&step=12, counted from 1; to a pair: ?left=NAME&right=NAME; to a lesson's page:
  // ?lesson=NAME&at=2, since Gradio reserves "page". The address names only runs that others can open.
  const ROOMS = ["#sp-stage", "#sp-see-stage", "#sp-image-stage"];
  const query = () => new URL(location.href).searchParams;
  /** @param {Stage | null | undefined} viewer @returns {viewer is Stage} */
  const isSeen = (viewer) => !!viewer && viewer.root.getClientRects().length > 0;
  /** @param {Stage} viewer */
  const nameOf = ({ live, feed }) => (live && feed.name ? `mine:${feed.name}` : feed.name);
  /** Names of visitors' own runs that the server keeps for whoever has the link. @type {Set<string | null>} */
  const kept = new Set([query().get("trace"), ...(query().get("methods") || "").split(",")]);
  /** @param {Stage} viewer */
  const isShared = (viewer) => kept.has(nameOf(viewer)) || (nameOf(viewer) && !nameOf(viewer).startsWith("mine:"));
  const sought = { trace: query().get("left") || query().get("trace"), step: query().has("step") ? Number(query().get("step")) - 1 : null };
  let seeking = sought.trace !== null || sought.step !== null;
  let writing = 0;
  let unseen = null;

  /** Go to the step that the address named, once its run is loaded; a restored run of the visitor's own takes precedence. */
  function seek(viewer) {
    if (isSeen(viewer) && viewer.feed.name.startsWith("mine:") && viewer.feed.name !== sought.trace) seeking = false;
    if (!seeking || (sought.trace && sought.trace !== viewer.feed.name)) return;
    seeking = false;
    const { step } = sought;
    if (step !== null && Number.isInteger(step) && step >= 0) setTimeout(() => viewer.go(step), 30);
  }

  // A link may name a run that does not exist, so any click or key on the page ends the search for it.
  for (const kind of ["pointerdown", "keydown"]) {
    document.addEventListener(kind, (event) => { if (closest(event, ".sp-room, .sp-top")) seeking = false; }, true);
  }

  // ?tab=learn opens a tab; the first one needs no parameter. Tabs that do not fit are in a menu, without their ids.
  /** @returns {HTMLElement[]} */
  const tabs = () => [...all(".sp-tabs > .tab-wrapper :is([role=tablist], .overflow-dropdown) > button")];
  const word = (tab) => tab.textContent.trim().toLowerCase();
  const openTab = () => tabs().find((tab) => tab.getAttribute("aria-selected") === "true" || tab.classList.contains("selected"));

  // A first visitor who followed no link is offered the story on the opening page.
  const VISITED = "specviz-visited";
  const welcome = (isNew) => {
    root.classList.toggle("sp-new", isNew);
    for (const offer of all(".sp-offer")) offer.hidden = !isNew;
    if (!isNew) store.set("yes", VISITED);
  };
  welcome(!store.get(VISITED) && [...query().keys()].every((name) => name.startsWith("__")));
  window.addEventListener("pagehide", () => store.set("yes", VISITED));

  /** The visible lesson and its page. */
  function lesson() {
    const shown = find(".sp-lesson[data-lesson]");
    return shown && shown.getClientRects().length ? shown.dataset : { lesson: null, at: null };
  }

  /** The address of the page's visible content. */
  function address() {
    const url = new URL(location.href);
    const set = (name, value) => { if (value === null) url.searchParams.delete(name); else url.searchParams.set(name, value); };
    const tab = openTab();
    if (tab) set("tab", tab === tabs()[0] ? null : word(tab));
    for (const part of ["play", "story", "methods"]) if (tab && word(tab) !== part) set(part, null);
    if (tab && word(tab) !== "methods") set("trees", null);
    if (seeking) return url.href;
    const [room, left, right] = [ROOMS.map(stage).find(isSeen), stage("#sp-left"), stage("#sp-right")];
    /** @param {Stage | null | undefined} viewer */
    const name = (viewer) => (isSeen(viewer) && isShared(viewer) ? nameOf(viewer) : null);
    /** A pair in an address is of recorded runs. @param {Stage | null | undefined} viewer */
    const recorded = (viewer) => (name(viewer)?.startsWith("mine:") ? null : name(viewer));
    const viewer = room || left;
    set("trace", name(room));
    set("left", recorded(left));
    set("right", recorded(right));
    set("step", viewer && name(viewer) && viewer.cursor >= 0 ? viewer.cursor + 1 : null);
    set("lesson", lesson().lesson);
    set("at", lesson().at);
    return url.href;
  }

  function write() {
    writing = 0;
    const next = address();
    if (next !== location.href) history.replaceState(history.state, "", next);
  }

  const writeSoon = () => { if (!writing) writing = setTimeout(write, 400); };

  // A hidden stage pauses, and resumes when its tab is opened again.
  const waiting = new WeakSet();

  function hold(viewer) {
    if (!viewer) return;
    if (isSeen(viewer)) {
      if (waiting.delete(viewer)) viewer.player.play();
    } else if (viewer.player.playing) {
      waiting.add(viewer);
      viewer.player.pause();
    }
  }

  // One tab is in the Tab order; arrows reach the others.
  const inBar = () => tabs().filter((tab) => tab.getAttribute("role") === "tab");
  document.addEventListener("keydown", (event) => {
    const tab = closest(event, ".sp-tabs > .tab-wrapper [role=tab]");
    const [row, { key }] = [inBar(), event];
    const at = tab && { ArrowRight: row.indexOf(tab) + 1, ArrowLeft: row.indexOf(tab) - 1, Home: 0, End: -1 }[key];
    if (at === undefined || at === null) return;
    event.preventDefault();
    row.at(at % row.length)?.focus();
  });

  function turn() {
    for (const tab of inBar()) tab.tabIndex = tab === openTab() ? 0 : -1;
    for (const host of document.querySelectorAll(".specviz-host")) hold(host.specviz && host.specviz.stage);
    const open = openTab();
    if (open && word(open) === "story") welcome(false);
    writeSoon();
  }

  document.addEventListener("specviz:step", (event) => {
    const host = closest(event, ".specviz-host");
    // The first step is reported before the component has its stage, and before the stage plays.
    if (host) setTimeout(() => {
      const viewer = host.specviz && host.specviz.stage;
      if (!viewer) return;
      hold(viewer);
      if ([...ROOMS, "#sp-left"].some((id) => host.closest(id))) seek(viewer);
      if (unseen && host.closest(unseen.id)) goTo(unseen.id, unseen.at);
      if (isSeen(viewer)) writeSoon();
    });
  });
  for (const viewer of ROOMS.map(stage)) if (viewer && viewer.last >= 0) seek(viewer);

  const bar = document.querySelector(".sp-tabs > .tab-wrapper");
  if (bar) new MutationObserver(() => setTimeout(turn)).observe(bar, { subtree: true, childList: true, attributeFilter: ["aria-selected"] });
  const wantedTab = tabs().find((button) => word(button) === window.specvizTab);
  if (wantedTab) wantedTab.click();
  turn();
  setTimeout(() => root.classList.remove("sp-arriving"), 60);

  /** Copy a text. A page without HTTPS has no clipboard API and can only copy a selection. */
  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (!copied) throw new Error("the browser refused");
    return undefined;
  }

  /** The address to pass on. A Space's frame adds a visitor's own token to it. */
  function link() {
    clearTimeout(writing);
    write();
    const url = new URL(location.href);
    url.searchParams.delete("__sign");
    return url.href;
  }

  // What the Share menu needs of the page; its script is fetched when it is first opened.
  const lent = {
    link,
    copy,
    address: (path) => `${base()}/${path}`,
    /** The visible stage that has a run. @returns {Stage | null} */
    stage: () => [...document.querySelectorAll(".specviz-host")].map((host) => host.specviz?.stage)
      .find((viewer) => isSeen(viewer) && viewer.last >= 0) || null,
    /** The name of its run, if others can open it; a lesson's stage adds its page after a `#`. */
    name: () => { const viewer = lent.stage(); return viewer && isShared(viewer) ? nameOf(viewer).split("#")[0] : ""; },
    /** The name of its run, if it is the visitor's own and not shared yet. */
    own: () => { const viewer = lent.stage(); return viewer && !isShared(viewer) ? nameOf(viewer) : ""; },
    /** Have the server keep a run of the visitor's own, by default the visible one; until when, in a sentence. */
    keep: async (name = lent.own()) => {
      if (!name || kept.has(name)) return "";
      if (lent.stage()?.trace.baseline) throw new Error("Its autoregressive run is still being timed. Share it in a moment.");
      const answer = await fetch(`${base()}/specviz/share?run=${name}`, { method: "POST" });
      const said = await answer.text();
      if (!answer.ok) throw new Error(answer.status === 400 ? said : "The server did not answer; try again.");
      kept.add(name);
      return `A copy is kept here until ${said}. `;
    },
  };

  /** Fetch a script of the viewer. @param {string} path @param {() => void} then */
  function load(path, then) {
    const script = Object.assign(document.createElement("script"), { src: `${base()}/${path}` });
    script.onload = then;
    document.head.append(script);
  }

  find("#sp-link")?.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement} */ (event.currentTarget);
    load(String(button.dataset.script), () => window.SpecvizViewer?.share?.(/** @type {HTMLElement} */ (find("#sp-sharing")), button, lent));
  }, { once: true });

  // The reading view's script, when a stage first shows it, which may be before this page listens; and the code that made a run's steps.
  const redrawn = () => { for (const host of document.querySelectorAll(".specviz-host")) host.specviz?.stage.touch("tree"); };
  document.addEventListener("specviz:read", () => load(String(find("[data-reading]")?.dataset.reading), redrawn), { once: true });
  redrawn();
  document.addEventListener("specviz:source", async (event) => {
    event.preventDefault();
    const { stage: viewer, take } = /** @type {CustomEvent} */ (event).detail;
    const answer = await fetch(`${base()}/specviz/file?${new URLSearchParams({ kind: "source", run: nameOf(viewer).split("#")[0] })}`).catch(() => null);
    if (answer && answer.ok) take(await answer.json(), "");
    else take([], answer && answer.status === 400 ? await answer.text() : "The server did not answer; try again.");
  });

  // The runs that stages have shown in this visit, by name, those in sight last.
  const MOST_RUNS = 12;
  /** @type {Map<string, Recording>} */
  const visited = new Map();
  function visit() {
    for (const host of [...document.querySelectorAll(".specviz-host")].reverse()) {
      const viewer = host.specviz?.stage;
      if (!viewer || !nameOf(viewer)) continue;
      visited.delete(nameOf(viewer));
      visited.set(nameOf(viewer), viewer.trace);
    }
    for (const name of [...visited.keys()].slice(0, -MOST_RUNS)) visited.delete(name);
  }
  document.addEventListener("specviz:run", visit);
  visit();

  /** Show a step and a panel on a stage; on one without a run, as soon as its run is loaded. */
  function goTo(id, at) {
    const viewer = stage(id);
    unseen = viewer && viewer.last >= 0 ? null : { id, at };
    if (!viewer || unseen) return;
    viewer.set({ tab: at.panel ? "method" : "verdict", selectedNote: typeof at.panel === "string" ? at.panel : null });
    if (at.step >= 0) setTimeout(() => viewer.go(at.step), 30);
  }

  // State that a reload or a restart of the server would lose, stored for this tab: the forms, and the visitor's own runs.
  const KEPT = "specviz-kept";
  const MOST_KEPT = 1_500_000;
  const forms = {};

  /** The beginning of a run's file, up to `most` characters. */
  function fileOf(viewer, most) {
    if (!viewer || viewer.last < 0 || isShared(viewer)) return "";
    let room = most;
    const end = viewer.trace.lines.findIndex((line) => (room -= line.length + 1) < 0);
    return viewer.trace.lines.slice(0, end < 0 ? undefined : end).join("\n");
  }

  function keep() {
    if (writing) { clearTimeout(writing); write(); }
    const parts = {};
    let room = MOST_KEPT;
    for (const id of ROOMS) {
      const lines = fileOf(stage(id), room);
      room -= lines.length;
      const prefix = id.slice(1, -"-stage".length);
      parts[prefix] = { form: forms[prefix], lines };
    }
    // If the browser has no room for both, the forms matter more.
    for (const lines of [true, false]) {
      for (const part of Object.values(parts)) if (!lines) part.lines = "";
      try { return sessionStorage.setItem(KEPT, JSON.stringify({ href: location.href, parts })); } catch { /* too much, or a private window */ }
    }
    return undefined;
  }

  window.addEventListener("pagehide", keep);
  document.addEventListener("visibilitychange", () => { if (document.hidden) keep(); });

  // A run whose server is gone never ends by itself. Gradio reloads the page once the server is back.
  /** @type {Notice} */
  const GONE = { error: "The server no longer answers, so the live run cannot go on. Its steps so far and your settings are kept: "
    + "once the server is back, this page reloads with them. Then press Run live to start again.", run: "", message: "", fraction: null };

  async function ask() {
    const going = [...document.querySelectorAll(".specviz-host")].flatMap((host) => (host.specviz ? [host.specviz.stage] : []))
      .filter((viewer) => viewer.running || viewer.trace.coming || viewer.trace.notice === GONE);
    if (!going.length) return;
    const gone = await fetch(`${base()}/specviz/tail/-`).then(() => null, () => GONE);
    root.classList.toggle("sp-gone", Boolean(gone));
    for (const viewer of going) {
      if (gone) viewer.trace.coming = null;
      if (gone || viewer.trace.notice === GONE) viewer.trace.notice = gone;
      viewer.touch("run", "data");
    }
  }

  setInterval(ask, 3000);

  // Behind a proxy, only the path of the address that the server reports is reliable.
  const base = () => new URL((window.gradio_config || {}).root || "/", location.href).pathname.replace(/\/$/, "");

  /** Stream a run's lines, also after a lost connection; returns a function that stops. `over` gets the reason for a bad end. */
  window.specvizTail = (path, run, from, take, over) => {
    let source = null, next = from, again = 0;
    const open = () => {
      source = new EventSource(`${base()}/${path}/${run.replace("mine:", "")}?from=${next}`);
      source.onmessage = (event) => { next = Number(event.lastEventId); take(event.data); };
      source.addEventListener("over", (event) => { source.close(); over(event.data); });
      source.onerror = () => {
        ask();
        if (source.readyState === EventSource.CLOSED) again = setTimeout(open, 2000); // otherwise the browser itself reconnects
      };
    };
    open();
    return () => { clearTimeout(again); source.close(); };
  };

  let arrive = () => {};
  const arrival = new Promise((done) => { arrive = () => done(null); });

  window.specvizPage = {
    /** Resolved once the kept runs are restored. */
    arrival,
    arrive,
    reveal,
    figures: (fold, run) => [isOpen(fold) ? run : "", dark() ? "dark" : "light"],
    align: (left, right, how) => { if (window.SpecvizViewer) window.SpecvizViewer.align(left, right, how); },
    go: goTo,
    address: (path) => `${base()}/${path}`,
    load,
    /** The lines of a run's file. @param {string} name */
    lines: async (name) => {
      const answer = await fetch(`${base()}/specviz/file?${new URLSearchParams({ run: name, kind: "trace" })}`);
      if (!answer.ok) throw new Error(answer.status === 400 ? await answer.text() : "The server did not answer; try again.");
      return answer.text();
    },
    /** The runs of this visit, those in sight first. @returns {Recording[]} */
    runs: () => { visit(); return [...visited.values()].reverse(); },
    /** What passes cost on the server's machine, or null where none were timed. */
    costs: () => fetch(`${base()}/specviz/costs`).then((answer) => (answer.ok ? answer.json() : null)).catch(() => null),
    stage,
    remember: (prefix, values) => { forms[prefix] = values; },
  };
}
