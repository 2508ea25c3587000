// Sign paths for audioproxy with Node.
//
//     AP_KEY=... AP_SALT=... node sign.mjs /f:opus/br:96/plain/local://piece.wav ...
//
// Not for a page: whoever can read the key can sign anything. Sign on a server, and hand the page
// the finished URL.

import { createHmac } from "node:crypto";

// Returns the path with its signature ahead of it.
//
// What goes wrong: hashing the hexadecimal text and not the bytes that it stands for; "base64" for
// "base64url"; leaving padding; signing a path that is decoded, or has the host or a query with it.
// Sign what will travel, byte for byte. fetch() takes /../ out of a path: write such a source as
// enc/.
export function sign(keyHex, saltHex, path) {
  // Buffer.from() alone stops at the first digit that is none, without a word.
  if (!/^(?:[0-9a-f]{2}){32,}$/i.test(keyHex)) {
    throw new Error("AP_KEY must be at least 32 bytes in hexadecimal digits");
  }
  if (!/^(?:[0-9a-f]{2})+$/i.test(saltHex)) {
    throw new Error("AP_SALT must be at least 1 byte in hexadecimal digits");
  }
  // Visible ASCII without # and ?.
  if (!/^\/[!"$->@-~]*$/.test(path)) {
    throw new Error("a path starts with a slash, is percent-encoded and has no query");
  }
  const hmac = createHmac("sha256", Buffer.from(keyHex, "hex"));
  hmac.update(Buffer.from(saltHex, "hex")).update(path, "ascii");
  return `/${hmac.digest("base64url")}${path}`;
}

try {
  for (const path of process.argv.slice(2)) {
    console.log(sign(process.env.AP_KEY ?? "", process.env.AP_SALT ?? "", path));
  }
} catch (error) {
  console.error(`sign.mjs: ${error.message}`);
  process.exitCode = 1;
}
