// Sign paths for audioproxy with Node.
//
//     AP_KEY=... AP_SALT=... node sign.mjs /f:opus/br:96/plain/local://piece.wav ...
//
// Not for web pages: everyone who can read the key can sign any URL. Sign on a server, and give the
// page the finished URL.

import { createHmac } from "node:crypto";

// Returns the path with its signature in front.
//
// Common mistakes:
//
// - hashing the hexadecimal text and not the decoded bytes
// - "base64" instead of "base64url", or keeping the padding
// - signing a decoded path, or a path with a host or a query
//
// Sign exactly the bytes of the request. fetch() removes /../ from a path: write such a source as enc/.
export function sign(keyHex, saltHex, path) {
  // Buffer.from() alone stops at the first invalid digit, without an error.
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
