// The state of the page in its address: `#source=nocturne.flac&f=opus&t=4:14`. A reload, a bookmark and a
// shared link keep it. Back and forward return to earlier states.
//
// A source is a file name, which may have bytes that are not UTF-8. So its percent-encoded form is its form
// everywhere in this page: in the list, in the address and in requests.

const UNSAFE = /[^A-Za-z0-9_.~/:-]/gu;

// Percent-encode text. Slashes and colons stay readable.
export function encode(text) {
  return text.toWellFormed().replace(UNSAFE, (character) => {
    return [...new TextEncoder().encode(character)].map(hexadecimal).join("");
  });
}

// Return percent-encoded text for display. Bytes that are not UTF-8 are replaced.
export function decode(encoded) {
  const bytes = encoded.replace(/%([0-9A-F]{2})/gi, (_, digits) => String.fromCharCode(parseInt(digits, 16)));
  return new TextDecoder().decode(Uint8Array.from(bytes, (character) => character.charCodeAt(0)));
}

// Return the query string of parameters.
export function query(parameters) {
  return Object.entries(parameters)
    .map(([name, value]) => `${name}=${name === "source" ? value : encode(String(value))}`)
    .join("&");
}

// Read the address. Return the source or null, the options, and the names that are given twice.
export function readAddress() {
  const options = new Map();
  const repeated = [];
  let source = null;
  for (const pair of location.hash.slice(1).split("&").filter(Boolean)) {
    const [, name, value] = /^([^=]*)=?(.*)$/.exec(pair);
    if (name === "source" && source === null) {
      source = normalize(value);
    } else if (name === "source" || options.has(name)) {
      repeated.push(name);
    } else {
      options.set(name, decode(value));
    }
  }
  return { source, options, repeated };
}

export class Address {
  #changed = null;

  // Show the state that was read from the address, without what could not be used.
  correct(parameters) {
    this.#changed = null;
    history.replaceState(null, "", `#${query(parameters)}`);
  }

  // Show a new state. Successive changes of the same parameters share an entry of the history.
  write(parameters) {
    const hash = `#${query(parameters)}`;
    if (hash === location.hash) {
      return;
    }
    const [before, after] = [location.hash, hash].map((text) => text.slice(1).split("&"));
    const differing = [...before.filter((it) => !after.includes(it)), ...after.filter((it) => !before.includes(it))];
    const changed = [...new Set(differing.map((pair) => pair.split("=")[0]))].sort().join();
    history[changed === this.#changed ? "replaceState" : "pushState"](null, "", hash);
    this.#changed = changed;
  }
}

// Return a percent-encoded source in the form that the list of sources has.
function normalize(encoded) {
  return encoded
    .replace(/%(?![0-9A-F]{2})/gi, "%25")
    .replace(/%[0-9A-F]{2}/gi, (escape) => {
      const character = String.fromCharCode(parseInt(escape.slice(1), 16));
      return encode(character) === character ? character : escape.toUpperCase();
    })
    .replace(/[^A-Za-z0-9_.~/:%-]/g, encode);
}

function hexadecimal(byte) {
  return `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
}
