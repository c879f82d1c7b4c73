// A drop-down with headings whose entries change: {"value": NAME, "groups": [[HEADING, [[TITLE, NAME], ...]], ...]}.
const select = element.querySelector("select");

const show = () => {
  const { value, groups } = JSON.parse(props.value);
  select.replaceChildren(
    ...groups.map(([heading, entries]) => {
      const group = document.createElement("optgroup");
      group.label = heading;
      group.append(...entries.map(([title, name]) => new Option(title, name)));
      return group;
    }),
  );
  select.value = value;
};

select.addEventListener("change", () => {
  props.value = JSON.stringify({ ...JSON.parse(props.value), value: select.value });
  trigger("input");
});
watch("value", show);
show();
