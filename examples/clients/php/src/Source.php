<?php

declare(strict_types=1);

namespace Audioproxy;

/** A source. Every string may have any bytes; text is UTF-8. */
final class Source implements \Stringable
{
    /** @param string $canonical its string without any encoding */
    private function __construct(public readonly string $canonical)
    {
    }

    /**
     * Return the source that is a file below AP_LOCAL_ROOT.
     *
     * @throws NotFound for a path that cannot be a source
     */
    public static function local(string $path): self
    {
        if (str_starts_with($path, '/')) {
            throw new NotFound(
                "path: '$path' is absolute; use the path relative to AP_LOCAL_ROOT"
            );
        }
        return self::parseLocal($path);
    }

    /**
     * Return the source that is an object in a bucket.
     *
     * @throws NotFound for a bucket or a key that cannot be a source
     */
    public static function s3(string $bucket, string $key): self
    {
        if (str_contains($bucket, '/')) {
            throw new NotFound('a bucket name has no slash');
        }
        return self::parseS3("$bucket/$key");
    }

    /**
     * Return the source at an https URL, with every character escaped that a URL may not hold.
     *
     * Valid escapes such as %20 stay as they are. ? begins the query, and # the fragment, which is
     * removed: escape these two, and %, where they belong to a name: rawurlencode($name).
     *
     * @throws NotFound for a URL that cannot be a source
     */
    public static function https(string $url): self
    {
        if (!preg_match('~^https://([^/?#]*)(.*)$~isD', $url, $match)) {
            throw new NotFound('a URL starts with https://');
        }
        [, $host, $rest] = $match;
        if (preg_match('/[\x80-\xff]/', $host)) {
            throw new NotFound('a host is ASCII; write an international name in its xn-- form');
        }
        $rest = (string) preg_replace('/%(?![0-9a-f]{2})/i', '%25', $rest);
        return self::parseHttps($host . self::percentEncode($rest, "!$&'()*+,;=:@/?#%"));
    }

    /**
     * Return the source of a string that begins with local://, s3:// or https://.
     *
     * @throws NotFound for text that the service refuses as a source
     */
    public static function read(string|self $text): self
    {
        if ($text instanceof self) {
            return $text;
        }
        if (!preg_match('~^([a-z][a-z0-9+.-]*)://(.*)$~isD', $text, $match)) {
            throw new NotFound('a source starts with local://, s3:// or https://');
        }
        [, $scheme, $rest] = $match;
        return match (strtolower($scheme) === 'https' ? 'https' : $scheme) {
            'local' => self::parseLocal($rest),
            's3' => self::parseS3($rest),
            'https' => self::parseHttps($rest),
            default => throw new NotFound('a source is local://, s3:// or https://'),
        };
    }

    public function __toString(): string
    {
        return $this->canonical;
    }

    /**
     * Return bytes percent-encoded, except for letters, digits, -._~ and other kept characters.
     *
     * @internal
     */
    public static function percentEncode(string $bytes, string $kept): string
    {
        $characters = str_split($kept);
        $encoded = array_map(rawurlencode(...), $characters);
        return strtr(rawurlencode($bytes), array_combine($encoded, $characters));
    }

    private static function parseLocal(string $rest): self
    {
        if ($rest === '' || $rest[0] === '/' || str_contains($rest, "\0")) {
            throw new NotFound('a local path is relative, not empty, and has no NUL');
        }
        $components = explode('/', $rest);
        if (strlen($rest) > 1024 || count($components) > 64) {
            throw new NotFound('a local path has at most 64 components and 1024 bytes');
        }
        $depth = 0;
        foreach ($components as $component) {
            $depth += ['..' => -1, '.' => 0, '' => 0][$component] ?? 1;
            if ($depth < 0) {
                throw new NotFound('the path leaves the root');
            }
        }
        return new self("local://$rest");
    }

    private static function parseS3(string $rest): self
    {
        [$bucket, $key] = explode('/', $rest, 2) + [1 => ''];
        if (!preg_match('/^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$/D', $bucket)) {
            throw new NotFound(
                'a bucket is 1 to 63 letters, digits, dots, hyphens and underscores'
            );
        }
        if ($key === '' || strlen($key) > 1024) {
            throw new NotFound('a key has 1 to 1024 bytes');
        }
        return new self("s3://$bucket/$key");
    }

    private static function parseHttps(string $rest): self
    {
        if (strlen($rest) > 2048 - 8 || !preg_match('/^[!-~]*$/D', $rest)) {
            throw new NotFound('a URL has at most 2048 bytes, all printable ASCII');
        }
        preg_match('~^([^/?#]*)([^?#]*)(\?[^#]*)?~', $rest, $match);
        [, $authority, $path, $query] = $match + [3 => ''];
        $isHost = preg_match(
            '/^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?$/D',
            $authority,
            $match
        );
        if (!$isHost) {
            throw new NotFound('a URL has a plain host, an optional port and no user information');
        }
        $host = self::normalizeHost($match[1]);
        $port = (int) (($match[2] ?? '') === '' ? 443 : $match[2]);
        if ($port < 1 || $port > 65535) {
            throw new NotFound('a port is 1 to 65535');
        }
        $shownPort = $port === 443 ? '' : ":$port";
        $shownQuery = $query === '?' ? '' : $query;
        return new self("https://$host$shownPort" . ($path === '' ? '/' : $path) . $shownQuery);
    }

    private static function normalizeHost(string $host): string
    {
        if ($host[0] === '[') {
            return '[' . self::normalizeIpv6(substr($host, 1, -1)) . ']';
        }
        $normalized = strtolower($host);
        if (str_ends_with($normalized, '.')) {
            $normalized = substr($normalized, 0, -1);
        }
        foreach (explode('.', $normalized) as $label) {
            if ($label === '' || strlen($label) > 63 || strlen($normalized) > 253) {
                throw new NotFound('a host has at most 253 bytes, in labels of 1 to 63');
            }
        }
        return $normalized;
    }

    /** Return an address as RFC 5952, 4 spells it, without a part in the form of IPv4. */
    private static function normalizeIpv6(string $address): string
    {
        $bytes = filter_var($address, FILTER_VALIDATE_IP, FILTER_FLAG_IPV6)
            ? inet_pton($address)
            : false;
        if ($bytes === false) {
            throw new NotFound('a host in brackets is an IPv6 address');
        }
        $groups = implode(':', array_map(dechex(...), (array) unpack('n8', $bytes)));
        preg_match_all('/\b0(?::0)+\b/', $groups, $runs);
        $longest = '';
        foreach ($runs[0] as $run) {
            $longest = strlen($run) > strlen($longest) ? $run : $longest;
        }
        if ($longest === '') {
            return $groups;
        }
        [$head, $tail] = preg_split('/\b' . $longest . '\b/', $groups, 2);
        return rtrim($head, ':') . '::' . ltrim($tail, ':');
    }
}
