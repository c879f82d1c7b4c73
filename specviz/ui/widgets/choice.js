// @ts-check
// A drop-down with headings: [[HEADING, [[TITLE, NAME], ...]], ...]. Its value is the chosen name, or {"groups", "name"} with new entries.
const select = element.querySelector("select");

function list(groups) {
  select.replaceChildren(...groups.map(([heading, entries]) => {
    const group = document.createElement("optgroup");
    group.label = heading;
    group.append(...entries.map(([title, name]) => new Option(title, name)));
    return group;
  }));
}

function show() {
  if (!props.value.startsWith("{")) {
    select.value = props.value;
    return;
  }
  const { groups, name } = JSON.parse(props.value);
  list(groups);
  select.value = name;
}

select.addEventListener("change", () => {
  props.value = select.value;
  trigger("input");
});
watch("value", show);
list(JSON.parse(select.dataset.groups));
show();
