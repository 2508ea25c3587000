// Answers the calls of tests/urls/calls.py with the client in JavaScript.

import { readFileSync } from "node:fs";

import * as urls from "../../../examples/clients/javascript/index.js";

const { Signer, Variant, https, local, readSource, s3 } = urls;
const MAKERS = { local, s3, https, read_source: readSource };

const bytes = (value) =>
  value?.base64url === undefined ? value : Buffer.from(value.base64url, "base64url");
const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());

function signerOf({ key, salt, base, encoded, now }) {
  const raw = (hex) => Buffer.from(hex, "hex");
  return new Signer(raw(key), raw(salt), base, { encoded, now: () => now });
}

function answer({ call, signer, ...values }) {
  if (call === "read") {
    const variant = Variant.read(values.segments);
    return `${variant.canonical} ${variant.contentType}`;
  }
  if (call in MAKERS) {
    return MAKERS[call](...values.arguments.map(bytes)).canonical.toString("base64url");
  }
  if (call === "from_env") return Signer.fromEnv(values.environ).sign("/");
  const { source, variant, path, ...others } = values;
  const options = Object.entries(others).map(([name, value]) => [camel(name), value]);
  if (call === "sign") return signerOf(signer).sign(path);
  if (call === "info_url") return signerOf(signer).infoUrl(bytes(source));
  return signerOf(signer)[camel(call)](bytes(source), variant, Object.fromEntries(options));
}

const answers = JSON.parse(readFileSync(0, "utf-8")).map((call) => {
  try {
    return { text: answer(call) };
  } catch (error) {
    const isRefusal = error instanceof RangeError || error instanceof TypeError;
    if (!isRefusal) throw error;
    return { code: error.code ?? null, status: error.status, message: error.message };
  }
});
console.log(JSON.stringify(answers));
