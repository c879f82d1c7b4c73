// Save buttons: the server makes the text, the browser makes the file, so nothing is written to the server's disk.
const status = element.querySelector(".sp-saved");

function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
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
  status.textContent = "Making the file …";
  const step = element.querySelector("input");
  try {
    const file = await server.make_file([props.value, button.dataset.kind, step ? Number(step.value) : 1]);
    if (file.error) status.textContent = file.error;
    else {
      save(file.name, file.text, file.type);
      status.textContent = `${file.name}, ${Math.ceil(file.text.length / 1024).toLocaleString("en")} kB`;
    }
  } catch {
    status.textContent = "The server did not answer; reload the page and try again.";
  }
  button.disabled = false;
});
