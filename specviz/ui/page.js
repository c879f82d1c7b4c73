() => {
  const root = document.documentElement;
  const KEY = "specviz-theme";
  const kept = { get: () => { try { return localStorage.getItem(KEY); } catch { return null; } },
    set: (value) => { try { localStorage.setItem(KEY, value); } catch { /* a private window keeps nothing */ } } };

  function theme(name) {
    document.body.classList.toggle("dark", name === "dark");
    root.style.colorScheme = name;
    const button = document.querySelector("#sv-theme");
    if (!button) return;
    button.setAttribute("aria-label", name === "dark" ? "Use light colours" : "Use dark colours");
    button.title = button.getAttribute("aria-label");
  }

  const dark = () => document.body.classList.contains("dark");
  const asked = new URL(location.href).searchParams.get("__theme");
  const chosen = asked === "dark" || asked === "light" ? asked : kept.get();
  theme(chosen || (dark() ? "dark" : "light"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => theme(kept.get() || (event.matches ? "dark" : "light")));

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("#sv-theme");
    if (!button) return;
    const next = dark() ? "light" : "dark";
    kept.set(next);
    theme(next);
  });
}
