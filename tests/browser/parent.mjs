// The test that runs a script: it gives arguments, reads one JSON document, and ends the script's
// input when it ends itself.

process.stdin.on("end", () => process.exit(1)).resume();

// Print the document and end. What is written into a pipe is lost where exit() comes too early.
export function answer(document) {
  process.stdout.write(JSON.stringify(document), () => process.exit());
}
