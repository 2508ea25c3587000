/** Output formats. */
export type Format = "mp3" | "opus" | "ogg" | "aac" | "m4a" | "flac" | "wav" | "peaks";

/** A number of an option. URLs have 3 decimal places: numbers are rounded to them. */
export type Numeric = number | bigint | string;

/** A source: its string without any encoding, or a value from local(), s3() or https(). */
export type SourceLike = string | Uint8Array | Source;

/** The options of a variant, by their names in URLs. undefined omits an option. */
export interface Options {
  /** Output format; mp3 by default. */
  f?: Format | null;
  /** kbps. */
  br?: Numeric | null;
  /** Quality, on the scale of the format. */
  q?: Numeric | null;
  /** Hz. */
  sr?: Numeric | null;
  /** Channels: 1 or 2. */
  ch?: Numeric | null;
  /** Bit depth: 16, 24 or "32f". */
  bd?: Numeric | null;
  /** Seconds: the start, or the start and a duration. */
  t?: Numeric | readonly Numeric[] | null;
  /** Seconds: the fade-in, or the fade-in and the fade-out. */
  fade?: Numeric | readonly Numeric[] | null;
  /** dB. */
  gain?: Numeric | null;
  /** "ebu" for the service's targets, or LUFS, dBTP and LU, or only the first of these. */
  norm?: "ebu" | Numeric | readonly Numeric[] | null;
  /** A preset of filters. */
  enhance?: "voice" | null;
  /** Pixels of a waveform. */
  pts?: Numeric | null;
  /** Serialization of a waveform. */
  pk_fmt?: "json" | "dat" | null;
  /** Bits of each value of a waveform: 8 or 16. */
  pk_bits?: Numeric | null;
  /** A file name, unencoded. */
  dl?: string | null;
  /** Any text or bytes, unencoded. */
  cb?: string | Uint8Array | null;
}

/** When a URL ends. A fraction of a second is rounded up: it never expires early. */
export interface Expiry {
  /** Seconds from now until the service refuses the URL. */
  expiresIn?: number | bigint;
  /** The same point in time: a Date, or Unix seconds (not milliseconds). */
  expiresAt?: Date | number | bigint;
  /**
   * Expire later than expiresIn, at the next multiple of this many seconds (UTC). With 86400, all
   * URLs of a day are the same, so caches reuse their responses.
   */
  roundTo?: number | bigint;
}

export interface UrlOptions extends Expiry {
  /**
   * End the URL in this name, for podcast directories, and put /media before the signature. The
   * balancer in front has to remove both.
   */
  fileName?: string;
}

export interface ElementOptions extends Expiry {
  /** Formats of the sources, the preferred one first; opus, m4a and mp3 by default. */
  formats?: readonly Format[];
  /** Attributes of the element, as they stand in HTML; controls preload="none" by default. */
  attributes?: string;
}

export interface SignerOptions {
  /** Write every source in base64url, which hides its name from a casual reader only. */
  encoded?: boolean;
  /** Returns Unix time in seconds. */
  now?: () => number;
}

/** An option that the service refuses. The message quotes it. */
export declare class InvalidOptions extends RangeError {
  readonly status: 422;
  readonly code: "invalid_options";
}

/** A malformed source. The message says why. */
export declare class NotFound extends RangeError {
  readonly status: 404;
  readonly code: "not_found";
}

/** An expiry in the past. */
export declare class Expired extends RangeError {
  readonly status: 410;
  readonly code: "expired";
}

/**
 * The options of a variant, checked. The options that are set are its properties.
 *
 * The constructor throws InvalidOptions for a value or a conflict that the service refuses, and
 * TypeError for a value of another type or an unknown name.
 */
export declare class Variant {
  constructor(options?: Options);
  /** Returns the variant of option segments as they stand in a URL: "f:opus/br:96". */
  static read(segments: string): Variant;
  /** The canonical options string, which the URLs contain. */
  readonly canonical: string;
  /** The Content-Type that the variant is served with. */
  readonly contentType: string;
  toString(): string;
}
export interface Variant extends Readonly<Options> {}

/** A source that was checked. */
export declare class Source {
  private constructor();
  /** Its string without any encoding. */
  readonly canonical: Uint8Array;
  toString(): string;
}

/** Returns the source that is a file below AP_LOCAL_ROOT. Throws NotFound. */
export declare function local(path: string | Uint8Array): Source;

/** Returns the source that is an object in a bucket. Throws NotFound. */
export declare function s3(bucket: string, key: string | Uint8Array): Source;

/**
 * Returns the source at an https URL, with every character escaped that a URL may not hold.
 *
 * Valid escapes such as %20 stay as they are. ? begins the query, and # the fragment, which is
 * removed: escape these two, and %, where they belong to a name: encodeURIComponent(name). Throws
 * NotFound.
 */
export declare function https(url: string): Source;

/** Returns the source of a string that begins with local://, s3:// or https://. Throws NotFound. */
export declare function readSource(text: SourceLike): Source;

/** Creates URLs that a service with the same key and salt accepts. */
export declare class Signer {
  /**
   * @param key AP_KEY, decoded: at least 32 bytes
   * @param salt AP_SALT, decoded: at least 1 byte
   * @param base the text before the signature: an origin, a path, both, or nothing
   */
  constructor(key: Uint8Array, salt: Uint8Array, base?: string, options?: SignerOptions);
  /** Returns the signer for the values of AP_KEY and AP_SALT. */
  static fromHex(key: string, salt: string, base?: string, options?: SignerOptions): Signer;
  /** Returns the signer for AP_KEY and AP_SALT of an object such as process.env. */
  static fromEnv(
    environ: Readonly<Record<string, string | undefined>>,
    base?: string,
    options?: SignerOptions,
  ): Signer;
  readonly base: string;
  /** Returns the signed URL of a variant, by default an mp3 without other options. */
  url(source: SourceLike, variant?: Options | Variant, options?: UrlOptions): string;
  /**
   * Returns an HTML <audio> element with a variant in each format, the smallest first.
   *
   * Browsers play the first one that they support. With preload="none", they request it when the
   * listener presses play, so a page view renders nothing. Each format replaces the variant's f.
   */
  audioElement(source: SourceLike, variant?: Options | Variant, options?: ElementOptions): string;
  /** Returns the signed URL of a source's info document. It has no options or expiry. */
  infoUrl(source: SourceLike): string;
  /** Returns the base, the signature and a path that the caller wrote, percent-encoded. */
  sign(path: string): string;
}
