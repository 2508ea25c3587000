// Files that the user drops on the page, or chooses. The page's server stores each as a source.

import { encode } from "./address.mjs";

async function store(file, limit) {
  if (file.size > limit) {
    throw new Error(`It is larger than ${limit.toLocaleString("en")} bytes. Start the player with a higher AP_MAX_SRC_BYTES.`);
  }
  const response = await fetch(`uploads?name=${encode(file.name)}`, { method: "PUT", body: file }).catch(() => {
    throw new Error("It cannot be read, or the player does not respond. Folders cannot be dropped, only files.");
  });
  const document = await response.json();
  if (!response.ok) {
    throw new Error(document.message);
  }
  return document;
}

// Store files up to a size in bytes. Call `say` with what happens, and `added` with the rows of the sources.
export function acceptFiles(input, limit, say, added) {
  async function take(files) {
    const rows = [];
    let failure = "";
    for (const file of files) {
      say(`Copying ${file.name} …`);
      try {
        rows.push(await store(file, limit));
      } catch (error) {
        failure = `${file.name}: ${error.message}`;
      }
    }
    rows.length && added(rows);
    say(failure);
  }

  const over = (is) => document.body.classList.toggle("dropping", is);
  const holdsFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (holdsFiles(event)) {
      event.preventDefault();
      over(true);
    }
  });
  document.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || over(false));
  document.addEventListener("drop", (event) => {
    over(false);
    if (holdsFiles(event)) {
      event.preventDefault();
      take([...event.dataTransfer.files]);
    }
  });
  input.addEventListener("change", () => {
    take([...input.files]);
    // The same file can be chosen again.
    input.value = "";
  });
}
