// @ts-check
// <specviz-stage> on any page: a stage of the run whose lines it contains, or of the trace file that its src names.
import * as dom from "../kit/dom.js";

/** The text of a trace file, also of a packed one. @param {string} src */
async function read(src) {
  const answer = await fetch(src).catch(() => null);
  if (!answer) throw new Error("The browser cannot read it. Serve the page over HTTP, since a page opened from disk reads no files; another site must allow it (CORS).");
  if (!answer.ok) throw new Error(`The server answered ${answer.status}. Check the address.`);
  const bytes = await answer.arrayBuffer();
  const isPacked = new Uint8Array(bytes)[0] === 0x1f;
  return new Response(isPacked ? new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")) : bytes).text();
}

const { customElements, HTMLElement } = globalThis;
if (customElements && !customElements.get("specviz-stage")) {
  customElements.define("specviz-stage", class extends HTMLElement {
    connectedCallback() {
      this.style.display ||= "block";
      const src = this.getAttribute("src");
      if (src === null) this.show(this.textContent || "");
      else if (!this.asked) this.asked = this.load(src);
    }

    /** @param {string} text */
    show(text) {
      this.specviz ||= globalThis.SpecvizViewer?.mount(this, { text });
    }

    /** What the element contains stays until the file is there. @param {string} src */
    async load(src) {
      try {
        const text = await read(src);
        if (!/^\s*\{.*"kind":\s*"run"/.test(text)) throw new Error("It is not a trace file: its first line is no run record.");
        this.show(text);
      } catch (error) {
        this.replaceChildren(dom.h("p", { role: "alert" }, `The trace ${src} is not shown. ${Object(error).message}`));
      }
    }
  });
}
