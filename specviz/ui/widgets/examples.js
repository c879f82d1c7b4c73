// @ts-check
// Example buttons; if they are in a fold, a choice or the Escape key closes it.
const fold = element.querySelector("details");

element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-at]");
  if (!button) return;
  if (fold) fold.open = false;
  trigger("choose", { at: Number(button.dataset.at) });
});
element.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !fold || !fold.open) return;
  fold.open = false;
  fold.querySelector("summary").focus();
});
