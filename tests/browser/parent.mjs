// Interface to the test that runs a script. The test passes arguments and reads one JSON document.
// The script's standard input closes when the test ends, which ends the script.

process.stdin.on("end", () => process.exit(1)).resume();

// Print the document and exit. An earlier exit() would lose output that is still in the pipe.
export function printReport(document) {
  process.stdout.write(JSON.stringify(document), () => process.exit());
}
