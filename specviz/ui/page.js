() => {
  const root = document.documentElement;
  const KEY = "specviz-theme";
  const store = { get: () => { try { return localStorage.getItem(KEY); } catch { return null; } },
    set: (value) => { try { localStorage.setItem(KEY, value); } catch { /* a private window keeps nothing */ } } };

  function theme(name) {
    document.body.classList.toggle("dark", name === "dark");
    root.style.colorScheme = name;
    const button = document.querySelector("#sp-theme");
    if (!button) return;
    button.setAttribute("aria-label", name === "dark" ? "Use light colours" : "Use dark colours");
    button.title = button.getAttribute("aria-label");
  }

  const dark = () => document.body.classList.contains("dark");
  const themeParam = new URL(location.href).searchParams.get("__theme");
  const chosen = themeParam === "dark" || themeParam === "light" ? themeParam : store.get();
  theme(chosen || (dark() ? "dark" : "light"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => theme(store.get() || (event.matches ? "dark" : "light")));

  const head = (id) => document.querySelector(`#${id} button.label-wrap`);
  const isOpen = (id) => Boolean(head(id) && head(id).classList.contains("open"));

  /** Bring the fold with this id to the top. */
  function reveal(id) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const fold = document.getElementById(id);
    if (fold) setTimeout(() => fold.scrollIntoView({ behavior: calm ? "auto" : "smooth", block: "start" }), 60);
  }

  /** Figures are drawn when their fold opens, so opening it again draws them in the new colours. */
  function redraw(id) {
    head(id).click();
    setTimeout(() => head(id).click(), 50);
  }

  /** Open the fold with this id, if it is closed, and show it. */
  function unfold(id) {
    if (isOpen(id)) reveal(id);
    else if (head(id)) head(id).click();
  }

  document.addEventListener("click", (event) => {
    if (!event.target.closest) return;
    if (event.target.closest(".sp-skip")) {
      event.preventDefault();
      const seen = [...document.querySelectorAll(".specviz-host .specviz")].find((one) => one.getClientRects().length);
      if (seen) seen.focus();
    }
    const opener = event.target.closest("[data-sp-open]");
    if (opener) unfold(opener.dataset.spOpen);
    // On a phone the stage is above the button, out of sight.
    if (event.target.closest("#sp-run-live") && innerWidth <= 820) document.getElementById("sp-stage").scrollIntoView();
    if (!event.target.closest("#sp-theme")) return;
    const next = dark() ? "light" : "dark";
    store.set(next);
    theme(next);
    for (const { id } of document.querySelectorAll(".sp-figures")) if (isOpen(id)) redraw(id);
  });

  // Gradio's drop-downs let go of the focus once something is chosen, to nobody: it stays where the choice was made. A finger's
  // choice is left alone, because the focus would bring the keyboard of the screen back, and so is one in Compare: as Gradio
  // asks again when the focus goes, its answer would take back the prompt that is typed next.
  let choosing = null;
  const chooser = (element) => (element && element.matches("input[role=combobox]:not(.sp-compare *)") ? element : null);
  document.addEventListener("keydown", (event) => { choosing = event.key === "Enter" ? chooser(event.target) : null; }, true);
  document.addEventListener("pointerdown", (event) => {
    choosing = event.pointerType === "mouse" && event.target.closest("[role=option]") ? chooser(document.activeElement) : null;
    // Their list opens with the focus alone: one that has it already takes it anew.
    const pressed = chooser(event.target);
    if (pressed === document.activeElement && pressed.getAttribute("aria-expanded") === "false") pressed.blur();
  }, true);
  document.addEventListener("focusout", (event) => {
    if (event.target !== choosing) return;
    choosing = null;
    setTimeout(() => {
      if (document.activeElement !== document.body || !event.target.isConnected) return;
      event.target.focus({ preventScroll: true });
      event.target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true })); // the list, which opens with the focus
    });
  });

  /** The stage inside the component with this id, once it is there. */
  const stage = (id) => {
    const host = document.querySelector(`${id} .specviz-host`);
    return host && host.specviz ? host.specviz.stage : null;
  };

  // A link to a step: ?trace=NAME&step=12, counted as on the screen; to a pair: ?left=NAME&right=NAME; to a lesson's page:
  // ?lesson=NAME&at=2, since Gradio takes "page" for itself. Only runs that others can open are written there.
  const ROOMS = ["#sp-stage", "#sp-see-stage", "#sp-image-stage"];
  const query = () => new URL(location.href).searchParams;
  const isSeen = (viewer) => Boolean(viewer) && viewer.root.getClientRects().length > 0;
  const isShared = (viewer) => viewer.trace.mode === "recorded" && viewer.feed.name && !viewer.feed.name.startsWith("mine:");
  const sought = { trace: query().get("left") || query().get("trace"), step: query().has("step") ? Number(query().get("step")) - 1 : null };
  let seeking = sought.trace !== null || sought.step !== null;
  let writing = 0;
  let unseen = null;

  /** Go to the step that the address named, once its run is there; a run of one's own that came back stands in for it. */
  function seek(viewer) {
    if (isSeen(viewer) && viewer.feed.name.startsWith("mine:")) seeking = false;
    if (!seeking || (sought.trace && sought.trace !== viewer.feed.name)) return;
    seeking = false;
    if (Number.isInteger(sought.step) && sought.step >= 0) setTimeout(() => viewer.go(sought.step), 30);
  }

  // A link whose run is not here is never found: whoever plays or asks for something else gives it up.
  for (const kind of ["pointerdown", "keydown"]) {
    document.addEventListener(kind, (event) => { if (event.target.closest(".sp-room, .sp-top")) seeking = false; }, true);
  }

  // ?tab=learn opens a tab; the first one needs no word. Tabs that have no room stand in a menu, without their ids.
  const tabs = () => [...document.querySelectorAll(".sp-tabs > .tab-wrapper :is([role=tablist], .overflow-dropdown) > button")];
  const word = (tab) => tab.textContent.trim().toLowerCase();
  const openTab = () => tabs().find((tab) => tab.getAttribute("aria-selected") === "true" || tab.classList.contains("selected"));

  /** The lesson that is seen and its page. */
  function lesson() {
    const shown = document.querySelector(".sp-lesson[data-lesson]");
    return shown && shown.getClientRects().length ? shown.dataset : { lesson: null, at: null };
  }

  /** The address of what is seen. */
  function address() {
    const url = new URL(location.href);
    const set = (name, value) => { if (value === null) url.searchParams.delete(name); else url.searchParams.set(name, value); };
    const tab = openTab();
    if (tab) set("tab", tab === tabs()[0] ? null : word(tab));
    if (seeking) return url.href;
    const [room, left, right] = [ROOMS.map(stage).find(isSeen), stage("#sp-left"), stage("#sp-right")];
    const name = (viewer) => (isSeen(viewer) && isShared(viewer) ? viewer.feed.name : null);
    const viewer = room || left;
    set("trace", name(room));
    set("left", name(left));
    set("right", name(right));
    set("step", name(viewer) && viewer.cursor >= 0 ? viewer.cursor + 1 : null);
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

  // A stage nobody sees stands still; it goes on when its tab is opened again.
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

  function turn() {
    for (const host of document.querySelectorAll(".specviz-host")) hold(host.specviz && host.specviz.stage);
    writeSoon();
  }

  document.addEventListener("specviz:step", (event) => {
    const host = event.target.closest(".specviz-host");
    // The first step comes before the component has its stage, and before the stage plays.
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
  setTimeout(() => root.classList.remove("sp-arriving"), 60);

  /** Where the page is not served securely the browser has no clipboard but the one of a selection. */
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

  let fading = 0;

  /** Copy the address of what is seen, and say so; a run of one's own is in no address. */
  async function copyLink() {
    clearTimeout(writing);
    write();
    const seen = [...ROOMS, "#sp-left", "#sp-right"].map(stage).filter(isSeen);
    const own = seen.some((viewer) => viewer.last >= 0 && !isShared(viewer));
    let said = own ? "Link to this tab copied. Your own run is not in it: save it under Traces." : "Link copied.";
    try {
      await copy(location.href);
    } catch {
      said = "The browser does not let this page copy. The link is in the address bar.";
    }
    const status = document.getElementById("sp-linked");
    status.textContent = said;
    clearTimeout(fading);
    fading = setTimeout(() => { status.textContent = ""; }, 4000);
  }

  document.addEventListener("click", (event) => { if (event.target.closest && event.target.closest("#sp-link")) copyLink(); });

  /** Show a step and a panel on a stage; on one that has no run yet, as soon as it is there. */
  function goTo(id, at) {
    const viewer = stage(id);
    unseen = viewer && viewer.last >= 0 ? null : { id, at };
    if (unseen) return;
    viewer.set({ tab: at.panel ? "method" : "verdict", selectedNote: typeof at.panel === "string" ? at.panel : null });
    if (at.step >= 0) setTimeout(() => viewer.go(at.step), 30);
  }

  // What a reload or a server that restarts would take, kept for this tab: the forms, and the lines of the visitor's own runs.
  const KEPT = "specviz-kept";
  const MOST_KEPT = 1_500_000;
  const forms = {};

  /** The beginning of a run's file, as long as there is room for. */
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
    // Where the browser has no room for all, the forms are worth more.
    for (const lines of [true, false]) {
      for (const part of Object.values(parts)) if (!lines) part.lines = "";
      try { return sessionStorage.setItem(KEPT, JSON.stringify({ href: location.href, parts })); } catch { /* too much, or a private window */ }
    }
    return undefined;
  }

  window.addEventListener("pagehide", keep);
  document.addEventListener("visibilitychange", () => { if (document.hidden) keep(); });

  // A run whose server is gone never ends by itself. Gradio loads the page anew once it is back.
  const GONE = { error: "The server no longer answers, so the live run cannot go on. Its steps so far and your settings are kept: "
    + "once the server is back, this page loads anew with them. Then press Run live to start again." };

  async function ask() {
    const going = [...document.querySelectorAll(".specviz-host")].map((host) => host.specviz && host.specviz.stage)
      .filter((viewer) => viewer && (viewer.running || viewer.trace.coming || viewer.trace.notice === GONE));
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

  // Behind a proxy only the path of the server's idea of its own address is sure to be right.
  const base = () => new URL((window.gradio_config || {}).root || "/", location.href).pathname.replace(/\/$/, "");

  /** Lines of a run as the server has them, again after a break; returns what ends it. `over` gets the reason for a bad end. */
  window.specvizTail = (path, run, from, take, over) => {
    let source = null, next = from, again = 0;
    const open = () => {
      source = new EventSource(`${base()}/${path}/${run.replace("mine:", "")}?from=${next}`);
      source.onmessage = (event) => { next = event.lastEventId; take(event.data); };
      source.addEventListener("over", (event) => { source.close(); over(event.data); });
      source.onerror = () => {
        ask();
        if (source.readyState === EventSource.CLOSED) again = setTimeout(open, 2000); // else the browser itself comes back
      };
    };
    open();
    return () => { clearTimeout(again); source.close(); };
  };

  window.specvizPage = {
    reveal,
    figures: (fold, run) => [isOpen(fold) ? run : "", dark() ? "dark" : "light"],
    align: (left, right, how) => { if (window.SpecvizViewer) window.SpecvizViewer.align(left, right, how); },
    go: goTo,
    address: (path) => `${base()}/${path}`,
    stage,
    remember: (prefix, values) => { forms[prefix] = values; },
  };
}
