// @ts-check
// The keyboard, heard only while the focus is inside the stage.

import * as attention from "./attention.js";

const ACTIONS = {
  " ": (stage) => stage.player.toggle(),
  ArrowRight: (stage) => stage.go(stage.cursor + 1),
  ArrowLeft: (stage) => stage.back(),
  PageDown: (stage) => stage.go(stage.cursor + 1),
  PageUp: (stage) => stage.back(),
  Home: (stage) => stage.go(0),
  End: (stage) => (stage.running ? stage.followLive() : stage.go(stage.last)),
  r: (stage) => stage.rejection(),
  a: (stage) => stage.toggleSlow(),
  t: (stage) => stage.set({ table: !stage.table }),
  e: (stage) => stage.set({ reading: !attention.reads(stage), table: false }),
  f: (stage) => stage.fullScreen(),
  p: (stage) => stage.toggleProjector(),
  "?": (stage) => stage.toggleKeys(),
  Escape: (stage) => stage.escape(),
  v: (stage) => stage.flipPicture(),
  "+": (stage) => stage.set({ zoom: Math.min(4, stage.zoom * 1.5) }),
  "-": (stage) => stage.set({ zoom: Math.max(0.5, stage.zoom / 1.5) }),
  0: (stage) => stage.set({ zoom: 1 }),
};

/** Keys that the focused control uses itself. */
function usesKey(target, key) {
  const tag = target.tagName;
  if (tag === "SELECT" || tag === "TEXTAREA") return true;
  if (tag === "INPUT") return target.type !== "range" || key !== " ";
  if (tag === "BUTTON" || tag === "SUMMARY") return key === " ";
  return target.getAttribute("role") === "tab" && key.startsWith("Arrow");
}

/** @param {Stage} stage */
export function listen(stage) {
  stage.root.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const action = ACTIONS[key];
    if (!action || usesKey(event.target, key)) return;
    event.preventDefault();
    action(stage);
  });
}
