<?php

declare(strict_types=1);

namespace Audioproxy;

/** Creates URLs that a service with the same key and salt accepts. */
final class Signer
{
    private readonly \Closure $now;

    /**
     * @param string $key AP_KEY, decoded: at least 32 bytes
     * @param string $salt AP_SALT, decoded: at least 1 byte
     * @param string $base the text before the signature: an origin, a path, both, or nothing
     * @param bool $encoded write every source in base64url, which hides its name from a casual
     *     reader; this is not encryption
     * @param ?callable(): float $now Unix time in seconds
     */
    public function __construct(
        #[\SensitiveParameter] private readonly string $key,
        #[\SensitiveParameter] private readonly string $salt,
        public readonly string $base = '',
        public readonly bool $encoded = false,
        ?callable $now = null,
    ) {
        if (strlen($key) < 32) {
            throw new \InvalidArgumentException(
                'a key is at least 32 bytes; Signer::fromHex accepts the text of AP_KEY'
            );
        }
        if ($salt === '') {
            throw new \InvalidArgumentException(
                'a salt is at least 1 byte; Signer::fromHex accepts the text of AP_SALT'
            );
        }
        if (str_ends_with(rtrim($base, '/'), '/media')) {
            throw new \InvalidArgumentException(
                'a base must not end in /media, which URLs with a file name add to it'
            );
        }
        if (!preg_match('~^(?:https?://[A-Za-z0-9._:[\]-]+)?(?:/[!$-;=@-Z_a-z\~]*)?$~D', $base)) {
            throw new \InvalidArgumentException(
                'a base is an origin such as https://audio.example, a path such as /audio, or both'
            );
        }
        $this->now = $now === null ? static fn (): float => microtime(true) : $now(...);
    }

    /** Return the signer for the values of AP_KEY and AP_SALT. */
    public static function fromHex(
        #[\SensitiveParameter] string $key,
        #[\SensitiveParameter] string $salt,
        string $base = '',
        bool $encoded = false,
        ?callable $now = null,
    ): self {
        $rawKey = self::secret('AP_KEY', $key, 32);
        return new self($rawKey, self::secret('AP_SALT', $salt, 1), $base, $encoded, $now);
    }

    /**
     * Return the signer for AP_KEY and AP_SALT of an array such as getenv() returns.
     *
     * @param array<string, mixed> $environ
     */
    public static function fromEnv(
        #[\SensitiveParameter] array $environ,
        string $base = '',
        bool $encoded = false,
        ?callable $now = null,
    ): self {
        foreach (['AP_KEY', 'AP_SALT'] as $name) {
            if (($environ[$name] ?? '') === '') {
                throw new \InvalidArgumentException(
                    "$name: not set; use the value that the service has"
                );
            }
        }
        return self::fromHex($environ['AP_KEY'], $environ['AP_SALT'], $base, $encoded, $now);
    }

    /**
     * Return the signed URL of a variant, by default an mp3 without other options.
     *
     * A fraction of a second is rounded up: the URL never expires early.
     *
     * @param int|float|\DateInterval|null $expiresIn time until the service refuses the URL:
     *     seconds or an interval
     * @param int|float|\DateTimeInterface|null $expiresAt the same point in time: Unix seconds or a
     *     date
     * @param int|float|\DateInterval|null $roundTo expire later than $expiresIn, at the next
     *     multiple of this time (UTC); with 86400, all URLs of a day are the same
     * @param ?string $fileName end the URL in this name, for podcast directories, and put /media
     *     before the signature; the balancer in front has to remove both
     * @throws NotFound for a malformed source
     * @throws Expired if that time has already passed
     * @throws \InvalidArgumentException for arguments that do not suit each other
     */
    public function url(
        string|Source $source,
        ?Variant $variant = null,
        int|float|\DateInterval|null $expiresIn = null,
        int|float|\DateTimeInterface|null $expiresAt = null,
        int|float|\DateInterval|null $roundTo = null,
        ?string $fileName = null,
    ): string {
        $variant ??= new Variant();
        $exp = $this->expiry($expiresIn, $expiresAt, $roundTo);
        $options = $variant->canonical . ($exp === null ? '' : "/exp:$exp");
        $path = "/$options/" . $this->spellSource($source);
        if ($fileName === null) {
            return $this->sign($path);
        }
        $name = self::encodeFileName($fileName, $variant);
        return rtrim($this->base, '/') . "/media{$this->signed($path)}/$name";
    }

    /**
     * Return an HTML <audio> element with a variant in each format, the smallest first.
     *
     * Browsers play the first one that they support. With preload="none", they request it when the
     * listener presses play, so a page view renders nothing.
     *
     * @param ?Variant $variant the other options; each format replaces its f
     * @param list<string> $formats
     * @param string $attributes of the element, as they stand in HTML
     */
    public function audioElement(
        string|Source $source,
        ?Variant $variant = null,
        array $formats = ['opus', 'm4a', 'mp3'],
        string $attributes = 'controls preload="none"',
        int|float|\DateInterval|null $expiresIn = null,
        int|float|\DateTimeInterface|null $expiresAt = null,
        int|float|\DateInterval|null $roundTo = null,
    ): string {
        $exp = $this->expiry($expiresIn, $expiresAt, $roundTo);
        $sources = '';
        foreach ($formats as $f) {
            $each = new Variant(...['f' => $f] + ($variant?->values ?? []));
            $url = htmlspecialchars($this->url($source, $each, expiresAt: $exp), ENT_QUOTES);
            $codec = ['opus' => '; codecs=opus', 'ogg' => '; codecs=vorbis'][$f] ?? '';
            $sources .= "<source src=\"$url\" type=\"$each->contentType$codec\">";
        }
        return "<audio $attributes>$sources</audio>";
    }

    /** Return the signed URL of a source's info document. It has no options or expiry. */
    public function infoUrl(string|Source $source): string
    {
        return $this->sign('/info/' . $this->spellSource($source));
    }

    /**
     * Return the base, the signature and a path that the caller wrote.
     *
     * @param string $path everything after the signature, percent-encoded as it is sent
     * @throws \InvalidArgumentException for a path that clients would change before sending it
     */
    public function sign(string $path): string
    {
        return rtrim($this->base, '/') . $this->signed($path);
    }

    /** @return array<string, mixed> without the secrets */
    public function __debugInfo(): array
    {
        return ['base' => $this->base, 'encoded' => $this->encoded];
    }

    private function signed(string $path): string
    {
        if (!preg_match('~^/[!$-;=@-[\]_a-z|\~]*$~D', $path)) {
            throw new \InvalidArgumentException(
                'a path starts with a slash, is percent-encoded and has no query'
            );
        }
        if (preg_match('~/(?:\.|%2e){1,2}(?:/|$)~i', $path)) {
            throw new \InvalidArgumentException(
                'clients remove . and .. segments from a path; use enc/'
            );
        }
        $digest = hash_hmac('sha256', $this->salt . $path, $this->key, true);
        return '/' . self::base64url($digest) . $path;
    }

    /** Return exp in Unix seconds, or null for a URL that never expires. */
    private function expiry(
        int|float|\DateInterval|null $expiresIn,
        int|float|\DateTimeInterface|null $expiresAt,
        int|float|\DateInterval|null $roundTo,
    ): ?int {
        if ($expiresIn !== null && $expiresAt !== null) {
            throw new \InvalidArgumentException('expiresIn and expiresAt exclude each other');
        }
        if ($roundTo !== null && $expiresIn === null) {
            throw new \InvalidArgumentException('roundTo goes with expiresIn');
        }
        $now = (int) floor(($this->now)());
        if ($expiresIn !== null) {
            $exp = $now + self::wholeSeconds('expiresIn', $expiresIn, $now);
            if ($roundTo !== null) {
                $step = self::wholeSeconds('roundTo', $roundTo);
                if ($step < 1) {
                    throw new \InvalidArgumentException('roundTo: at least 1 second is expected');
                }
                $exp = intdiv($exp + $step - 1, $step) * $step;
            }
        } elseif ($expiresAt !== null) {
            $exp = self::wholeSeconds('expiresAt', $expiresAt);
        } else {
            return null;
        }
        Options::parse(["exp:$exp"]);
        if ($now > $exp) {
            throw new Expired('This URL has expired.');
        }
        return $exp;
    }

    /** @param int $from Unix seconds from which an interval counts */
    private static function wholeSeconds(string $name, mixed $value, int $from = 0): int
    {
        if ($value instanceof \DateInterval) {
            $value = (new \DateTimeImmutable("@$from"))->add($value);
        }
        if ($value instanceof \DateTimeInterface) {
            $value = (float) $value->format('U.u') - $from;
        }
        if (!is_finite($value)) {
            throw new \InvalidArgumentException("$name: $value is not a number of seconds");
        }
        // Beyond every valid time, so that it is an integer.
        return (int) max(-1e15, min(1e15, ceil($value)));
    }

    private function spellSource(string|Source $source): string
    {
        $bytes = Source::read($source)->canonical;
        // Clients remove dot segments before they send a path, which makes the signature wrong.
        if ($this->encoded || preg_match('~(?:^|/)\.{1,2}(?:/|$)~D', $bytes)) {
            return 'enc/' . self::base64url($bytes);
        }
        return 'plain/' . Source::percentEncode($bytes, '/:');
    }

    private static function encodeFileName(string $name, Variant $variant): string
    {
        try {
            $encoded = Options::fileName(rawurlencode($name));
        } catch (\UnexpectedValueException $error) {
            throw new \InvalidArgumentException("file name '$name': {$error->getMessage()}");
        }
        $type = $variant->contentType;
        $shares = static fn (array $row): bool => ($row['type'] ?? '') === $type;
        $sharing = array_filter(Options::FORMATS, $shares);
        $extensions = array_keys($sharing) ?: [$variant->values['pk_fmt'] ?? 'json'];
        foreach ($extensions as $extension) {
            if (str_ends_with($name, ".$extension") && $name !== ".$extension") {
                return $encoded;
            }
        }
        $endings = '.' . implode(' or .', $extensions);
        throw new \InvalidArgumentException(
            "file name '$name': a name that ends in $endings suits $type"
        );
    }

    private static function base64url(string $bytes): string
    {
        return rtrim(strtr(base64_encode($bytes), '+/', '-_'), '=');
    }

    private static function secret(
        string $name,
        #[\SensitiveParameter] string $text,
        int $least,
    ): string {
        $digits = strlen($text);
        $invalid = strspn($text, '0123456789abcdefABCDEF');
        if ($text !== trim($text)) {
            $fault = 'white space around the value';
        } elseif ($invalid < $digits) {
            $fault = 'character ' . ($invalid + 1) . " of $digits is not a hexadecimal digit";
        } elseif ($digits % 2 > 0) {
            $fault = "an odd number of hexadecimal digits, $digits, but each byte has two";
        } elseif ($digits < 2 * $least) {
            $fault = intdiv($digits, 2) . ' byte' . ($digits === 2 ? '' : 's');
        } else {
            return (string) hex2bin($text);
        }
        [$amount, $verb] = $least === 1 ? ['1 byte', 'is'] : ["$least bytes", 'are'];
        throw new \InvalidArgumentException(
            "$name: $fault; at least $amount written as hexadecimal $verb required, such as"
            . ' `openssl rand -hex ' . max($least, 16) . '` prints'
        );
    }
}
