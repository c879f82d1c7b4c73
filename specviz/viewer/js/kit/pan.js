// @ts-check
// Pans the content of a scrolling box with the pointer.
import * as dom from "./dom.js";

/** Drag the empty parts of a scrolling box to move its content. Touch scrolls by itself. @param {HTMLElement} box */
export function pan(box) {
  let from = null;
  box.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0 || dom.closest(event, "[data-id]")) return;
    from = { x: event.clientX + box.scrollLeft, y: event.clientY + box.scrollTop };
    box.setPointerCapture(event.pointerId);
    box.classList.add("sv-panning");
  });
  box.addEventListener("pointermove", (event) => {
    if (from) box.scrollTo(from.x - event.clientX, from.y - event.clientY);
  });
  const stop = () => {
    from = null;
    box.classList.remove("sv-panning");
  };
  box.addEventListener("pointerup", stop);
  box.addEventListener("pointercancel", stop);
}
