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
    const opener = event.target.closest("[data-sp-open]");
    if (opener) unfold(opener.dataset.spOpen);
    // On a phone the stage is above the button, out of sight.
    if (event.target.closest("#sp-run-live") && innerWidth <= 820) document.getElementById("sp-stage").scrollIntoView();
    if (!event.target.closest("#sp-theme")) return;
    const next = dark() ? "light" : "dark";
    store.set(next);
    theme(next);
    if (isOpen("sp-figures")) redraw("sp-figures");
  });

  /** The stage inside the component with this id, once it is there. */
  const stage = (id) => {
    const host = document.querySelector(`${id} .specviz-host`);
    return host && host.specviz ? host.specviz.stage : null;
  };

  // A link to a step: ?trace=NAME&step=12, counted as on the screen. Only runs that others can open are written there.
  const query = () => new URL(location.href).searchParams;
  let sought = query().has("step") ? { trace: query().get("trace"), step: Number(query().get("step")) - 1 } : null;
  let writing = 0;

  function seek(viewer) {
    const { name, trace } = viewer.feed;
    if (!sought || !trace.steps.length || (sought.trace && sought.trace !== name)) return false;
    const { step } = sought;
    sought = null;
    if (Number.isInteger(step) && step >= 0) setTimeout(() => viewer.go(step), 30);
    return true;
  }

  function write() {
    writing = 0;
    const viewer = stage("#sp-stage");
    if (!viewer || sought) return;
    const url = new URL(location.href);
    const shared = viewer.trace.mode === "recorded" && viewer.feed.name && !viewer.feed.name.startsWith("mine:");
    if (shared) url.searchParams.set("trace", viewer.feed.name);
    else url.searchParams.delete("trace");
    if (shared && viewer.cursor >= 0) url.searchParams.set("step", String(viewer.cursor + 1));
    else url.searchParams.delete("step");
    if (url.href !== location.href) history.replaceState(history.state, "", url);
  }

  // ?tab=learn opens a tab; the first one needs no word. Tabs that have no room stand in a menu, without their ids.
  const tabs = () => [...document.querySelectorAll(".sp-tabs > .tab-wrapper :is([role=tablist], .overflow-dropdown) > button")];
  const word = (tab) => tab.textContent.trim().toLowerCase();
  document.addEventListener("click", (event) => {
    const tab = tabs().find((button) => button.contains(event.target));
    if (!tab) return;
    const url = new URL(location.href);
    if (tab === tabs()[0]) url.searchParams.delete("tab");
    else url.searchParams.set("tab", word(tab));
    history.replaceState(history.state, "", url);
  });
  const wantedTab = tabs().find((button) => word(button) === query().get("tab"));
  if (wantedTab) wantedTab.click();

  document.addEventListener("specviz:step", (event) => {
    if (!event.target.closest("#sp-stage")) return;
    const viewer = stage("#sp-stage");
    if (viewer && seek(viewer)) return;
    if (!writing) writing = setTimeout(write, 400);
  });
  if (stage("#sp-stage")) seek(stage("#sp-stage"));

  /** Tokens written by the end of each step. */
  function tokensByStep(viewer) {
    let total = 0;
    return viewer.trace.steps.map((step) => { total += step.emitted.length; return total; });
  }

  /** The step of `other` that stands where step `at` of `viewer` stands: by tokens written, or by the clock. */
  function matchingStep(viewer, at, other, how) {
    const [mine, theirs] = how === "time" ? [viewer.trace.ends, other.trace.ends] : [tokensByStep(viewer), tokensByStep(other)];
    const place = theirs.findIndex((value) => value >= mine[at]);
    return place < 0 ? theirs.length - 1 : place;
  }

  let alignment = null;
  let leading = false;

  /** The other stage of the pair follows the one with this id. */
  function alignOther(side) {
    const [viewer, other] = [stage(side), stage(side === alignment.left ? alignment.right : alignment.left)];
    if (alignment.how === "off" || !viewer || !other || viewer.cursor < 0 || other.last < 0 || viewer.running || other.running) return;
    leading = true;
    other.player.pause();
    other.show(matchingStep(viewer, viewer.cursor, other, alignment.how));
    leading = false;
  }

  document.addEventListener("specviz:step", (event) => {
    if (!alignment || leading) return;
    const side = [alignment.left, alignment.right].find((id) => event.target.closest(id));
    if (side) alignOther(side);
  });

  /** Lines of a live run as the server writes them; returns what ends it. A way that is blocked is given up quietly. */
  window.specvizTail = (path, run, from, take) => {
    if (!window.gradio_config) return null; // inside somebody else's page
    // Behind a proxy only the path of the server's idea of its own address is sure to be right.
    const base = new URL(window.gradio_config.root || "/", location.href).pathname.replace(/\/$/, "");
    const source = new EventSource(`${base}/${path}/${encodeURIComponent(run)}?from=${from}`);
    source.onmessage = (event) => take(event.data);
    source.onerror = () => source.close();
    source.addEventListener("over", () => source.close());
    return () => source.close();
  };

  window.specvizPage = {
    reveal,
    figures: (run) => [isOpen("sp-figures") ? run : "", dark() ? "dark" : "light"],
    align: (left, right, how) => { alignment = { left, right, how }; alignOther(left); },
    go: (id, { step, panel }) => {
      const viewer = stage(id);
      if (!viewer) return;
      viewer.set({ tab: panel ? "method" : "verdict", selectedNote: typeof panel === "string" ? panel : null });
      if (step >= 0) setTimeout(() => viewer.go(step), 30);
    },
    stage,
  };
}
