// A drop-down with headings: [[HEADING, [[TITLE, NAME], ...]], ...]. Its value is the chosen name.
const select = element.querySelector("select");

function list() {
  // A tab that is not open yet loses the other properties with its first update.
  const groups = props.groups || JSON.parse(select.dataset.groups);
  select.replaceChildren(...groups.map(([heading, entries]) => {
    const group = document.createElement("optgroup");
    group.label = heading;
    group.append(...entries.map(([title, name]) => new Option(title, name)));
    return group;
  }));
  show();
}

function show() {
  select.value = props.value;
}

select.addEventListener("change", () => {
  props.value = select.value;
  trigger("input");
});
watch("groups", list);
watch("value", show);
list();
