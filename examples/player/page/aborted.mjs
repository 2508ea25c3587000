// What was called off, because something newer came, is no failure.
export function ignoreAborted(error) {
  if (error.name !== "AbortError") {
    throw error;
  }
}
