// @ts-check
// Save buttons: the server makes the text and caches it compressed, the browser makes the file.
const status = element.querySelector(".sp-saved");

function save(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

element.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-kind]");
  if (!button) return;
  button.disabled = true;
  status.textContent = "Creating the file …";
  const query = new URLSearchParams({ run: props.value, kind: button.dataset.kind, step: element.querySelector("input").value });
  try {
    const answer = await fetch(window.specvizPage.address(`specviz/file?${query}`));
    if (answer.ok) {
      const file = await answer.blob();
      const [, name] = /** @type {string[]} */ (/filename="(.*)"/.exec(String(answer.headers.get("content-disposition"))));
      save(name, file);
      status.textContent = `${name}, ${Math.ceil(file.size / 1024).toLocaleString("en")} kB`;
    } else if (answer.status === 400) status.textContent = await answer.text();
    else throw new Error(answer.statusText);
  } catch {
    status.textContent = "The server did not answer; reload the page and try again.";
  }
  button.disabled = false;
});
