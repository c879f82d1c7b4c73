// Save buttons: the server makes the text and keeps it packed in memory, the browser makes the file.
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
  status.textContent = "Making the file …";
  const step = element.querySelector("input");
  try {
    const file = await server.make_file([props.value, button.dataset.kind, step ? Number(step.value) : 1]);
    if (file.error) status.textContent = file.error;
    else {
      const answer = await fetch(window.specvizPage.address(file.path));
      if (!answer.ok) throw new Error(answer.statusText);
      save(file.name, await answer.blob());
      status.textContent = `${file.name}, ${Math.ceil(file.size / 1024).toLocaleString("en")} kB`;
    }
  } catch {
    status.textContent = "The server did not answer; reload the page and try again.";
  }
  button.disabled = false;
});
