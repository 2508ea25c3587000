// Create an element. Strings among its children are added as text, never as markup.
export function element(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "boolean") {
      made.toggleAttribute(key, value);
    } else {
      made.setAttribute(key, value);
    }
  }
  made.append(...children);
  return made;
}
