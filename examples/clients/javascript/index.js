// Signed URLs for audioproxy: builds what the service accepts, and refuses what it refuses.
//
// Signing is synchronous, so that templates can call it. Hence node:crypto, which Deno and Bun have
// too; Web Crypto is asynchronous. Never sign in a web page: everyone could read the key.

import { Buffer } from "node:buffer";
import { createHmac } from "node:crypto";

// What the service refuses, with the status and the code of its response.

export class InvalidOptions extends RangeError {
  name = "InvalidOptions";
  status = 422;
  code = "invalid_options";
}

export class NotFound extends RangeError {
  name = "NotFound";
  status = 404;
  code = "not_found";
}

export class Expired extends RangeError {
  name = "Expired";
  status = 410;
  code = "expired";
}

// Bytes are strings of characters up to U+00FF, so that regular expressions apply to them.

function toBytes(value) {
  if (typeof value !== "string") return Buffer.from(value).toString("latin1");
  if (/\p{Surrogate}/u.test(value)) throw new RangeError("the text is not valid Unicode");
  return Buffer.from(value, "utf8").toString("latin1");
}

function percentEncode(bytes, kept = /[\w.~-]/) {
  const escape = (c) => `%${c.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`;
  return bytes.replace(/[^]/g, (c) => (kept.test(c) ? c : escape(c)));
}

function percentDecode(text) {
  if (/%(?![0-9a-f]{2})/i.test(text)) {
    throw new RangeError("every % must start an escape of two hexadecimal digits");
  }
  return text.replace(/%(..)/g, (_, digits) => String.fromCharCode(parseInt(digits, 16)));
}

function base64url(bytes) {
  return Buffer.from(bytes, "latin1").toString("base64url");
}

function requireType(name, value, isAccepted, accepted) {
  if (isAccepted(value)) return;
  const type = value === null ? "null" : typeof value;
  throw new TypeError(`${name}: '${type}' is not accepted; use ${accepted}`);
}

const isString = (value) => typeof value === "string";
const isNumber = (value) => ["number", "bigint"].includes(typeof value);
const isBytes = (value) => value instanceof Uint8Array;

// Parsers of option values. Each returns the shortest spelling.

function decimal(text, low, high, plus = false) {
  const bounds = low === undefined ? "" : ` from ${low} to ${high}`;
  const match = /^([+-]?)(\d{1,9})(?:\.(\d{1,3}))?$/.exec(text);
  if (match === null || (match[1] === "+" && !plus)) {
    throw new RangeError(`a plain decimal${bounds} with at most 3 fractional digits is expected`);
  }
  const number = Number(text);
  if (number < low || number > high) throw new RangeError(`a number${bounds} is expected`);
  return String(number === 0 ? 0 : number);
}

function integer(low, high) {
  const longest = Math.max(9, String(high).length);
  const bounds = low === undefined ? " of at most 9 digits" : ` from ${low} to ${high}`;
  return (text) => {
    const isWhole = /^-?\d+$/.test(text) && text.replace("-", "").length <= longest;
    if (!isWhole || Number(text) < low || Number(text) > high) {
      throw new RangeError(`a whole number${bounds} is expected`);
    }
    return String(Number(text) || 0);
  };
}

function choice(...accepted) {
  return (text) => {
    if (!accepted.includes(text)) throw new RangeError(`${accepted.join(" or ")} is expected`);
    return text;
  };
}

function split(text, shape) {
  const parts = text.split(":");
  if (parts.length > shape.split(":").length) throw new RangeError(`${shape} is expected`);
  return parts;
}

const seconds = (text) => decimal(text, 0, 999_999_999);

function trim(text) {
  const [start, ...rest] = split(text, "start[:duration]");
  const duration = rest.map(seconds);
  if (duration[0] === "0") throw new RangeError("a duration longer than 0 is expected");
  return [seconds(start), ...duration].join(":");
}

function fade(text) {
  const [fadeIn, fadeOut = "0"] = split(text, "in[:out]").map(seconds);
  return fadeOut === "0" ? fadeIn : `${fadeIn}:${fadeOut}`;
}

function loudness(text) {
  const [name, ...targets] = split(text, "ebu[:I[:TP[:LRA]]]");
  if (name !== "ebu") throw new RangeError("ebu is expected");
  const bounds = [[-70, -5], [-9, 0], [1, 50]];
  const given = targets.map((target, i) => decimal(target, ...bounds[i]));
  return ["ebu", ...given, ...["-16", "-1.5", "11"].slice(given.length)].join(":");
}

function anyBytes(text) {
  const bytes = percentDecode(text);
  if (bytes.length > 255) throw new RangeError("at most 255 bytes are expected");
  return percentEncode(bytes);
}

function fileName(text) {
  const bytes = anyBytes(text);
  let name;
  try {
    name = decodeURIComponent(bytes);
  } catch {
    throw new RangeError("a UTF-8 file name is expected");
  }
  if (/[\0-\x1f\x7f-\x9f/\\]/.test(name)) {
    throw new RangeError("a file name without control characters, / or \\ is expected");
  }
  return bytes;
}

// Output formats: Content-Type, bounds of br and q, sample rates, bit depths.

const MPEG = [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000];
const OPUS = [8000, 12000, 16000, 24000, 48000];
const AAC = [7350, ...MPEG];
const FORMATS = {
  mp3: { type: "audio/mpeg", br: [8, 320], q: [0, 9], rates: MPEG },
  opus: { type: "audio/ogg", br: [6, 510], q: [0, 10], wholeQ: true, rates: OPUS },
  ogg: { type: "audio/ogg", br: [32, 500], q: [-1, 10] },
  aac: { type: "audio/aac", br: [8, 512], q: [0.1, 2], rates: AAC },
  m4a: { type: "audio/mp4", br: [8, 512], q: [0.1, 2], rates: AAC },
  flac: { type: "audio/flac", q: [0, 12], wholeQ: true, tensAbove: 65534, bd: ["16", "24"] },
  wav: { type: "audio/wav", bd: ["16", "24", "32f"] },
  peaks: {},
};
const CODECS = { opus: "; codecs=opus", ogg: "; codecs=vorbis" };

// Rules for conflicts between options. Each returns what would be accepted, or undefined.

function missing(o, what, key) {
  const names = Object.keys(FORMATS).filter((name) => FORMATS[name][key]);
  const last = names.pop();
  return `f:${o.f} has no ${what} to set; ${key} goes with ${names.join(", ")} and ${last}`;
}

function bitrateRule(o) {
  const { br } = FORMATS[o.f];
  if (!br) return missing(o, "bitrate", "br");
  if (o.q !== undefined) return "br and q exclude each other; one of them is expected";
  if (o.br < br[0] || o.br > br[1]) return `f:${o.f} takes ${br[0]} to ${br[1]} kbps`;
}

function qualityRule(o) {
  const { q, wholeQ } = FORMATS[o.f];
  if (!q) return missing(o, "quality", "q");
  if (o.q < q[0] || o.q > q[1] || (wholeQ && o.q % 1)) {
    return `f:${o.f} takes ${wholeQ ? "a whole number" : "a number"} from ${q[0]} to ${q[1]}`;
  }
}

function rateRule(o) {
  const { br, rates, tensAbove } = FORMATS[o.f];
  if (o.f === "peaks") return "f:peaks has no sample rate to set; sr goes with every other format";
  if (br && o.sr > 48000) return "a lossy format takes at most 48000 Hz";
  if (rates && !rates.includes(Number(o.sr))) return `f:${o.f} takes one of ${rates.join(", ")} Hz`;
  if (o.sr > tensAbove && o.sr % 10) {
    return `f:${o.f} takes only multiples of 10 above ${tensAbove} Hz`;
  }
}

function depthRule(o) {
  const { bd } = FORMATS[o.f];
  if (!bd) return missing(o, "bit depth", "bd");
  if (!bd.includes(o.bd)) return `f:${o.f} takes ${bd.join(" or ")}`;
}

function fadeRule(o) {
  const duration = o.t?.split(":")[1];
  if (o.fade.split(":").some((length) => Number(length) > Number(duration))) {
    return `t limits the output to ${duration} s, and a fade cannot be longer`;
  }
}

const peaksRule = (o) => (o.f === "peaks" ? undefined : "it goes with f:peaks only");

// Kinds of JavaScript values.

const WORD = { types: [isString], accepted: "a string" };
const TEXT = { ...WORD, encoded: true };
const BYTES = { types: [isString, isBytes], accepted: "a string or Uint8Array", encoded: true };
const WHOLE = { types: [isString, isNumber], accepted: "a number or string", whole: true };
const NUMBER = { types: [isString, isNumber], accepted: "a number or string" };
const NUMBERS = { ...NUMBER, accepted: "a number, a string, or an array of them", several: true };

const OPTIONS = {
  f: { kind: WORD, parse: choice(...Object.keys(FORMATS)) },
  br: { kind: WHOLE, parse: integer(), rule: bitrateRule },
  q: { kind: NUMBER, parse: (text) => decimal(text), rule: qualityRule },
  sr: { kind: WHOLE, parse: integer(1000, 384_000), rule: rateRule },
  ch: { kind: WHOLE, parse: choice("1", "2") },
  bd: { kind: WHOLE, parse: choice("16", "24", "32f"), rule: depthRule },
  t: { kind: NUMBERS, parse: trim },
  fade: { kind: NUMBERS, parse: fade, rule: fadeRule },
  gain: { kind: NUMBER, parse: (text) => decimal(text, -60, 60, true) },
  norm: { kind: { ...NUMBERS, prefix: "ebu" }, parse: loudness },
  enhance: { kind: WORD, parse: choice("voice") },
  pts: { kind: WHOLE, parse: integer(1, 65_536), rule: peaksRule },
  pk_fmt: { kind: WORD, parse: choice("json", "dat"), rule: peaksRule },
  pk_bits: { kind: WHOLE, parse: choice("8", "16"), rule: peaksRule },
  dl: { kind: TEXT, parse: fileName },
  cb: { kind: BYTES, parse: anyBytes },
};
const PEAKS_DEFAULTS = { ch: "1", pts: "800", pk_fmt: "json", pk_bits: "16" };
const PARSERS = { exp: integer(0, 253_402_300_799) };
for (const [name, { parse }] of Object.entries(OPTIONS)) PARSERS[name] = parse;

// Names that other programs have for options, in lower case and without underscores.
const OTHER_NAMES = {
  bitdepth: "bd", bitrate: "br", channels: "ch", codec: "f", download: "dl", fadein: "fade",
  fadeout: "fade", filename: "dl", format: "f", loudness: "norm", normalize: "norm",
  preset: "enhance", quality: "q", samplerate: "sr", trim: "t", volume: "gain",
};

function refusal(segment, why) {
  const shown = segment.replace(/[\x80-\xff]/g, (c) => `\\x${c.charCodeAt(0).toString(16)}`);
  const quoted = shown.length > 80 ? `${shown.slice(0, 80)}...` : shown;
  return new InvalidOptions(`"${quoted}" is not accepted: ${why}.`);
}

// Returns the canonical values of option segments by name, and exp.
function parseSegments(segments) {
  const raw = {};
  const values = {};
  for (const segment of segments) {
    if (segment === "") {
      throw new InvalidOptions("An option segment is empty; each is spelled key:value.");
    }
    const [key] = segment.split(":", 1);
    const text = segment.slice(key.length + 1);
    if (!Object.hasOwn(PARSERS, key)) {
      throw refusal(segment, `the options are ${Object.keys(PARSERS).sort().join(", ")}`);
    }
    if (text === "") throw refusal(segment, `${key} needs a value, spelled ${key}:value`);
    try {
      values[key] = PARSERS[key](text);
    } catch (error) {
      throw refusal(segment, error.message);
    }
    if (key in raw) throw refusal(segment, `${key} may be given only once`);
    raw[key] = segment;
  }
  const { exp, ...given } = values;
  const options = { f: "mp3", ...(given.f === "peaks" ? PEAKS_DEFAULTS : {}), ...given };
  for (const [key, { rule }] of Object.entries(OPTIONS)) {
    const why = options[key] === undefined ? undefined : rule?.(options);
    if (why) throw refusal(raw[key], why);
  }
  return { options, exp };
}

// As toFixed(3), which rounds ties away from zero; the other libraries round them to even.
function thousandths(number) {
  const isTie = Math.abs((number * 16) % 2) === 1;
  const lower = Math.floor(number * 1000);
  return (isTie ? (lower + Math.abs(lower % 2)) / 1000 : number).toFixed(3);
}

function spellValue(name, value, kind) {
  requireType(name, value, (v) => kind.types.some((is) => is(v)), kind.accepted);
  if (kind.encoded) return percentEncode(toBytes(value));
  if (isString(value)) return toBytes(value);
  return kind.whole || Number.isInteger(value) || typeof value === "bigint"
    ? String(value)
    : thousandths(value);
}

function spellOption(name, value) {
  const { kind } = OPTIONS[name];
  const parts = kind.several && Array.isArray(value) ? value : [value];
  const spelled = parts.map((part) => spellValue(name, part, kind));
  if (kind.prefix && !isString(value)) spelled.unshift(kind.prefix);
  return `${name}:${spelled.join(":")}`;
}

function requireOption(name) {
  if (/^exp/.test(name)) {
    throw new TypeError(`Variant: ${name} is the third argument's of Signer.url, not of a variant`);
  }
  if (!Object.hasOwn(OPTIONS, name)) {
    const meant = OTHER_NAMES[name.toLowerCase().replaceAll("_", "")];
    const names = Object.keys(OPTIONS).join(", ");
    const hint = meant ? `did you mean ${meant}?` : `use ${names}`;
    throw new TypeError(`Variant: ${name} is not an option; ${hint}`);
  }
}

// The options of a variant.
export class Variant {
  #options;

  constructor(values = {}) {
    requireType("variant", values, (v) => typeof v === "object" && v !== null, "an object");
    Object.keys(values).forEach(requireOption);
    Object.assign(this, { f: "mp3" });
    const segments = [];
    try {
      for (const name of Object.keys(OPTIONS)) {
        const value = values[name] ?? this[name];
        if (value === undefined) continue;
        this[name] = value;
        segments.push(spellOption(name, value));
      }
    } catch (error) {
      if (error instanceof TypeError) throw error;
      throw new InvalidOptions(`An option has text that is not valid Unicode: ${error.message}.`);
    }
    this.#options = parseSegments(segments).options;
    Object.freeze(this);
  }

  // Returns the variant of option segments as they stand in a URL: "f:opus/br:96".
  static read(segments) {
    requireType("segments", segments, isString, "a string");
    let bytes;
    try {
      bytes = toBytes(segments);
    } catch (error) {
      throw new InvalidOptions(`An option has text that is not valid Unicode: ${error.message}.`);
    }
    const { options, exp } = parseSegments(bytes === "" ? [] : bytes.split("/"));
    if (exp !== undefined) {
      throw new InvalidOptions(
        `"exp:${exp}" is not accepted: a variant never expires; the URL does, with expiresIn or` +
          " expiresAt.",
      );
    }
    const values = {};
    for (const [name, text] of Object.entries(options)) {
      const { kind } = OPTIONS[name];
      values[name] = kind.encoded ? Buffer.from(percentDecode(text), "latin1") : text;
      if (kind === TEXT) values[name] = values[name].toString("utf8");
    }
    return new Variant(values);
  }

  get canonical() {
    const names = Object.keys(this.#options).sort();
    return names.map((name) => `${name}:${this.#options[name]}`).join("/");
  }

  get contentType() {
    const json = this.#options.pk_fmt === "json";
    return FORMATS[this.f].type ?? (json ? "application/json" : "application/octet-stream");
  }

  toString() {
    return this.canonical;
  }
}

// Sources.

// A source that was checked. `canonical` is its string without any encoding.
export class Source {
  #canonical;

  constructor(canonical) {
    this.#canonical = canonical;
  }

  get canonical() {
    return Buffer.from(this.#canonical, "latin1");
  }

  toString() {
    return this.canonical.toString("utf8");
  }
}

function localSource(rest) {
  if (rest === "" || rest.startsWith("/") || rest.includes("\0")) {
    throw new NotFound("a local path is relative, not empty, and has no NUL");
  }
  const components = rest.split("/");
  if (rest.length > 1024 || components.length > 64) {
    throw new NotFound("a local path has at most 64 components and 1024 bytes");
  }
  let depth = 0;
  for (const component of components) {
    depth += { "..": -1, ".": 0, "": 0 }[component] ?? 1;
    if (depth < 0) throw new NotFound("the path leaves the root");
  }
  return new Source(`local://${rest}`);
}

function s3Source(rest) {
  const [bucket] = rest.split("/", 1);
  const key = rest.slice(bucket.length + 1);
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/.test(bucket)) {
    throw new NotFound("a bucket is 1 to 63 letters, digits, dots, hyphens and underscores");
  }
  if (key.length < 1 || key.length > 1024) throw new NotFound("a key has 1 to 1024 bytes");
  return new Source(`s3://${bucket}/${key}`);
}

function httpsSource(rest) {
  if (rest.length > 2048 - 8 || !/^[!-~]*$/.test(rest)) {
    throw new NotFound("a URL has at most 2048 bytes, all printable ASCII");
  }
  const [, authority, path, query = ""] = /^([^/?#]*)([^?#]*)(\?[^#]*)?/.exec(rest);
  const match = /^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?$/.exec(authority);
  if (match === null) {
    throw new NotFound("a URL has a plain host, an optional port and no user information");
  }
  const host = normalizeHost(match[1]);
  const port = Number(match[2] || 443);
  if (port < 1 || port > 65535) throw new NotFound("a port is 1 to 65535");
  const shownPort = port === 443 ? "" : `:${port}`;
  return new Source(`https://${host}${shownPort}${path || "/"}${query === "?" ? "" : query}`);
}

function normalizeHost(host) {
  if (host.startsWith("[")) {
    try {
      return new URL(`https://${host}/`).hostname;
    } catch {
      throw new NotFound("a host in brackets is an IPv6 address");
    }
  }
  const normalized = host.toLowerCase().replace(/\.$/, "");
  const labels = normalized.split(".");
  if (normalized.length > 253 || labels.some((each) => each.length < 1 || each.length > 63)) {
    throw new NotFound("a host has at most 253 bytes, in labels of 1 to 63");
  }
  return normalized;
}

const SCHEMES = { local: localSource, s3: s3Source, https: httpsSource };

// Returns the bytes of a part of a source.
function sourceBytes(value) {
  try {
    return toBytes(value);
  } catch (error) {
    throw new NotFound(error.message);
  }
}

// Returns the source of a string that begins with local://, s3:// or https://.
export function readSource(text) {
  if (text instanceof Source) return text;
  const isText = (value) => isString(value) || isBytes(value);
  requireType("source", text, isText, "a string, bytes, or a value from local(), s3() or https()");
  const bytes = sourceBytes(text);
  const match = /^([A-Za-z][A-Za-z0-9+.-]*):\/\/([^]*)$/.exec(bytes);
  if (match === null) throw new NotFound("a source starts with local://, s3:// or https://");
  const scheme = match[1].toLowerCase() === "https" ? "https" : match[1];
  if (!Object.hasOwn(SCHEMES, scheme)) {
    throw new NotFound("a source is local://, s3:// or https://");
  }
  return SCHEMES[scheme](match[2]);
}

// Returns the source that is a file below AP_LOCAL_ROOT.
export function local(path) {
  requireType("path", path, (value) => isString(value) || isBytes(value), "a string or Uint8Array");
  const bytes = sourceBytes(path);
  if (bytes.startsWith("/")) {
    throw new NotFound(`path: '${path}' is absolute; use the path relative to AP_LOCAL_ROOT`);
  }
  return localSource(bytes);
}

// Returns the source that is an object in a bucket.
export function s3(bucket, key) {
  requireType("bucket", bucket, isString, "a string");
  requireType("key", key, (value) => isString(value) || isBytes(value), "a string or Uint8Array");
  if (bucket.includes("/")) throw new NotFound("a bucket name has no slash");
  return s3Source(`${sourceBytes(bucket)}/${sourceBytes(key)}`);
}

// Returns the source at an https URL, with every character escaped that a URL may not hold.
export function https(url) {
  requireType("url", url, isString, "a string");
  const match = /^https:\/\/([^/?#]*)([^]*)$/i.exec(url);
  if (match === null) throw new NotFound("a URL starts with https://");
  const [, host, rest] = match;
  if (/[^\0-\x7f]/.test(host)) {
    throw new NotFound("a host is ASCII; write an international name in its xn-- form");
  }
  const bytes = sourceBytes(rest.replace(/%(?![0-9a-f]{2})/gi, "%25"));
  return httpsSource(host + percentEncode(bytes, /[\w.~!$&'()*+,;=:@/?#%-]/));
}

// The signer.

const EXPIRY_OPTIONS = ["expiresIn", "expiresAt", "roundTo"];
const URL_OPTIONS = [...EXPIRY_OPTIONS, "fileName"];
const ELEMENT_OPTIONS = ["formats", "attributes", ...EXPIRY_OPTIONS];

// Other values would be ignored: url(source, variant, 3600) would never expire.
function requireOptions(method, options, names) {
  const isObject = typeof options === "object" && options !== null;
  requireType("options", options, () => isObject, "an object such as { expiresIn: 3600 }");
  for (const name of Object.keys(options)) {
    if (!names.includes(name)) {
      throw new TypeError(`${method}: ${name} is not an option; use ${names.join(", ")}`);
    }
  }
}

function secret(name, text, least) {
  requireType(name, text, isString, "a string");
  const digits = text.length;
  const invalid = text.search(/[^0-9A-Fa-f]/);
  const bytes = `${digits / 2} byte${digits === 2 ? "" : "s"}`;
  let fault;
  if (text !== text.trim()) fault = "white space around the value";
  else if (invalid >= 0) fault = `character ${invalid + 1} of ${digits} is not a hexadecimal digit`;
  else if (digits % 2) {
    fault = `an odd number of hexadecimal digits, ${digits}, but each byte has two`;
  } else if (digits < 2 * least) fault = bytes;
  else return Buffer.from(text, "hex");
  const [amount, verb] = least === 1 ? ["1 byte", "is"] : [`${least} bytes`, "are"];
  throw new RangeError(
    `${name}: ${fault}; at least ${amount} written as hexadecimal ${verb} required, such as` +
      ` \`openssl rand -hex ${Math.max(least, 16)}\` prints`,
  );
}

function wholeSeconds(name, value, accepted = "a number of seconds") {
  requireType(name, value, isNumber, accepted);
  if (!Number.isFinite(Number(value))) {
    throw new RangeError(`${name}: ${value} is not a number of seconds`);
  }
  return Math.ceil(Number(value));
}

function checkedVariant(variant) {
  return variant instanceof Variant ? variant : new Variant(variant);
}

function spellSource(source, encoded) {
  const bytes = readSource(source).canonical.toString("latin1");
  // Clients remove dot segments before they send a path, which makes the signature wrong.
  if (encoded || /(?:^|\/)\.{1,2}(?:\/|$)/.test(bytes)) return `enc/${base64url(bytes)}`;
  return `plain/${percentEncode(bytes, /[\w.~/:-]/)}`;
}

function encodeFileName(name, variant) {
  requireType("fileName", name, isString, "a string");
  let encoded;
  try {
    encoded = fileName(percentEncode(toBytes(name)));
  } catch (error) {
    throw new RangeError(`file name '${name}': ${error.message}`);
  }
  const type = variant.contentType;
  const sharing = Object.keys(FORMATS).filter((format) => FORMATS[format].type === type);
  const extensions = variant.f === "peaks" ? [variant.pk_fmt ?? "json"] : sharing;
  if (!extensions.some((extension) => name.endsWith(`.${extension}`) && name !== `.${extension}`)) {
    const endings = extensions.map((extension) => `.${extension}`).join(" or ");
    throw new RangeError(`file name '${name}': a name that ends in ${endings} suits ${type}`);
  }
  return encoded;
}

const escapeHtml = (text) => text.replace(/[&"'<>]/g, (c) => `&#${c.charCodeAt(0)};`);

// Creates URLs that a service with the same key and salt accepts.
export class Signer {
  #key;
  #salt;
  #encoded;
  #now;

  constructor(key, salt, base = "", { encoded = false, now = () => Date.now() / 1000 } = {}) {
    requireType("key", key, isBytes, "a Uint8Array; Signer.fromHex accepts the text of AP_KEY");
    requireType("salt", salt, isBytes, "a Uint8Array; Signer.fromHex accepts the text of AP_SALT");
    requireType("base", base, isString, "a string");
    if (key.length < 32) throw new RangeError("a key is at least 32 bytes");
    if (salt.length < 1) throw new RangeError("a salt is at least 1 byte");
    this.base = base.replace(/\/+$/, "");
    if (this.base.endsWith("/media")) {
      throw new RangeError("a base must not end in /media, which URLs with a file name add to it");
    }
    if (!/^(?:https?:\/\/[A-Za-z0-9._:[\]-]+)?(?:\/[!$-;=@-Z_a-z~]*)?$/.test(base)) {
      throw new RangeError(
        "a base is an origin such as https://audio.example, a path such as /audio, or both",
      );
    }
    this.#key = Buffer.from(key);
    this.#salt = Buffer.from(salt);
    this.#encoded = encoded;
    this.#now = now;
  }

  // Returns the signer for the values of AP_KEY and AP_SALT.
  static fromHex(key, salt, base, options) {
    return new Signer(secret("AP_KEY", key, 32), secret("AP_SALT", salt, 1), base, options);
  }

  // Returns the signer for AP_KEY and AP_SALT of an object such as process.env.
  static fromEnv(environ, base, options) {
    for (const name of ["AP_KEY", "AP_SALT"]) {
      if (!environ[name]) {
        throw new RangeError(`${name}: not set; use the value that the service has`);
      }
    }
    return Signer.fromHex(environ.AP_KEY, environ.AP_SALT, base, options);
  }

  // Returns the signed URL of a variant.
  url(source, variant = {}, options = {}) {
    requireOptions("url", options, URL_OPTIONS);
    const checked = checkedVariant(variant);
    const segments = [checked.canonical];
    const exp = this.#expiry(options);
    if (exp !== undefined) segments.push(`exp:${exp}`);
    const path = `/${segments.join("/")}/${spellSource(source, this.#encoded)}`;
    if (options.fileName === undefined) return this.sign(path);
    const name = encodeFileName(options.fileName, checked);
    return `${this.base}/media${this.#signed(path)}/${name}`;
  }

  // Returns an HTML <audio> element with a variant in each format.
  audioElement(source, variant = {}, options = {}) {
    requireOptions("audioElement", options, ELEMENT_OPTIONS);
    const {
      formats = ["opus", "m4a", "mp3"],
      attributes = 'controls preload="none"',
      ...expiry
    } = options;
    requireType("formats", formats, Array.isArray, "an array of strings");
    const expiresAt = this.#expiry(expiry);
    const sources = formats.map((f) => {
      const each = new Variant({ ...checkedVariant(variant), f });
      const url = escapeHtml(this.url(source, each, { expiresAt }));
      return `<source src="${url}" type="${each.contentType}${CODECS[f] ?? ""}">`;
    });
    return `<audio ${attributes}>${sources.join("")}</audio>`;
  }

  // Returns the signed URL of a source's info document.
  infoUrl(source, ...others) {
    if (others.length > 0) throw new TypeError("infoUrl: it has no options, and never expires");
    return this.sign(`/info/${spellSource(source, this.#encoded)}`);
  }

  // Returns the base, the signature and a path that the caller wrote.
  sign(path) {
    return this.base + this.#signed(path);
  }

  #signed(path) {
    requireType("path", path, isString, "a string");
    if (!/^\/[!$-;=@-[\]_a-z|~]*$/.test(path)) {
      throw new RangeError("a path starts with a slash, is percent-encoded and has no query");
    }
    if (/\/(?:\.|%2e){1,2}(?:\/|$)/i.test(path)) {
      throw new RangeError("clients remove . and .. segments from a path; use enc/");
    }
    const hmac = createHmac("sha256", this.#key).update(this.#salt).update(path);
    return `/${hmac.digest("base64url")}${path}`;
  }

  // Returns exp in Unix seconds, or undefined for a URL that never expires.
  #expiry(options) {
    const { expiresIn, expiresAt, roundTo } = options;
    if (expiresIn !== undefined && expiresAt !== undefined) {
      throw new RangeError("expiresIn and expiresAt exclude each other");
    }
    if (roundTo !== undefined && expiresIn === undefined) {
      throw new RangeError("roundTo goes with expiresIn");
    }
    const now = Math.floor(this.#now());
    let exp;
    if (expiresIn !== undefined) {
      exp = now + wholeSeconds("expiresIn", expiresIn);
      if (roundTo !== undefined) {
        const step = wholeSeconds("roundTo", roundTo);
        if (step < 1) throw new RangeError("roundTo: at least 1 second is expected");
        exp = Math.ceil(exp / step) * step;
      }
    } else if (expiresAt !== undefined) {
      const isDate = expiresAt instanceof Date;
      const seconds = isDate ? expiresAt.getTime() / 1000 : expiresAt;
      exp = wholeSeconds("expiresAt", seconds, "a number of Unix seconds or a Date");
    } else {
      return undefined;
    }
    parseSegments([`exp:${exp}`]);
    if (now > exp) throw new Expired("This URL has expired.");
    return exp;
  }
}
