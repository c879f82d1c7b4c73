// A drop-down with headings. Its value is the chosen name.
const select = element.querySelector("select");

const show = () => {
  select.value = props.value;
};

select.addEventListener("change", () => {
  props.value = select.value;
  trigger("input");
});
watch("value", show);
show();
