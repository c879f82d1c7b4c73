// @ts-check
// A small form made from a list of fields (name, kind, bounds, help). Its value is JSON text: {"of", "fields", "values"}.
const host = element.querySelector(".sp-form");
let rendered = "";

const node = (tag, attributes, ...children) => {
  const newElement = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) newElement.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) newElement.setAttribute(name, value);
  }
  newElement.append(...children);
  return newElement;
};

function bounds(field) {
  if (field.low === null || field.high === null) return "";
  return `${field.low} to ${field.high}${field.unit ? " " + field.unit : ""}`;
}

function wrong(field, text) {
  if (field.choices.length || field.kind === "bool") return "";
  const number = Number(text);
  const whole = field.kind !== "int" || Number.isInteger(number);
  const fits = String(text).trim() !== "" && Number.isFinite(number) && number >= field.low && number <= field.high;
  return fits && whole ? "" : `${field.kind === "int" ? "A whole number, " : ""}${bounds(field)}`;
}

function input(field, value, id) {
  if (field.kind === "bool") return node("input", { type: "checkbox", id, checked: Boolean(value) });
  if (field.choices.length) {
    const options = field.choices.map((choice) => node("option", { value: choice, selected: choice === value }, choice.replaceAll("_", " ")));
    return node("select", { id }, ...options);
  }
  const step = field.step || (field.kind === "int" ? 1 : "any");
  return node("input", { type: "number", id, value, min: field.low, max: field.high, step, inputmode: "decimal" });
}

/** The first sentence, without its full stop; the rest is in the tooltip and the hint. */
const sentence = (text) => text.split(/\.\s/)[0].replace(/\.$/, "");

function row(form, field, prefix) {
  const id = `${prefix}-${field.name}`;
  const control = input(field, form.values[field.name], id);
  const help = [field.help, bounds(field)].filter(Boolean).join(" From ");
  const hint = node("span", { class: "sp-hint", id: `${id}-hint` }, help);
  const error = node("span", { class: "sp-wrong", role: "alert" });
  control.setAttribute("aria-describedby", hint.id);
  const label = node("label", { for: id, title: help }, field.kind === "bool" ? sentence(field.help) : field.title);
  if (field.unit && !field.title.toLowerCase().includes(field.unit)) label.append(" ", node("small", {}, field.unit));
  const check = () => {
    const problem = wrong(field, form.values[field.name]);
    error.textContent = problem;
    control.setAttribute("aria-invalid", String(Boolean(problem)));
  };
  control.addEventListener("input", () => {
    form.values[field.name] = field.kind === "bool" ? control.checked : control.value;
    check();
    rendered = JSON.stringify(form);
    props.value = rendered;
  });
  check();
  const wide = field.choices.some((choice) => choice.length > 10) ? " sp-wide" : "";
  return node("div", { class: `sp-field sp-${field.choices.length ? "choice" : field.kind}${wide}` }, label, control, error, hint);
}

function draw() {
  if (!props.value || props.value === rendered) return;
  rendered = props.value;
  const form = JSON.parse(rendered);
  host.replaceChildren(...form.fields.map((field) => row(form, field, `${form.of}-${element.id || "form"}`)));
  host.hidden = form.fields.length === 0;
}

watch("value", draw);
draw();
