<?php

declare(strict_types=1);

namespace Audioproxy;

/**
 * The options of a variant: their values, and the conflicts between them.
 *
 * @internal
 */
final class Options
{
    private const MPEG = [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000];
    private const ANY_AAC = [
        'br' => [8, 512],
        'q' => ['0.1', '2'],
        'rates' => [7350, ...self::MPEG],
    ];

    /** Output formats: Content-Type, bounds of br and q, sample rates, bit depths. */
    public const FORMATS = [
        'mp3' => [
            'type' => 'audio/mpeg',
            'br' => [8, 320],
            'q' => ['0', '9'],
            'rates' => self::MPEG,
        ],
        'opus' => [
            'type' => 'audio/ogg',
            'br' => [6, 510],
            'q' => ['0', '10'],
            'whole' => true,
            'rates' => [8000, 12000, 16000, 24000, 48000],
        ],
        'ogg' => ['type' => 'audio/ogg', 'br' => [32, 500], 'q' => ['-1', '10']],
        'aac' => ['type' => 'audio/aac'] + self::ANY_AAC,
        'm4a' => ['type' => 'audio/mp4'] + self::ANY_AAC,
        'flac' => [
            'type' => 'audio/flac',
            'q' => ['0', '12'],
            'whole' => true,
            'tens' => 65534,
            'bd' => ['16', '24'],
        ],
        'wav' => ['type' => 'audio/wav', 'bd' => ['16', '24', '32f']],
        'peaks' => [],
    ];

    private const PEAKS_DEFAULTS = [
        'ch' => '1',
        'pts' => '800',
        'pk_fmt' => 'json',
        'pk_bits' => '16',
    ];

    /**
     * Return the canonical values of option segments by name, and exp.
     *
     * @param list<string> $segments
     * @return array{array<string, string>, ?int}
     * @throws InvalidOptions
     */
    public static function parse(array $segments): array
    {
        $parsers = self::parsers();
        $raw = $values = [];
        foreach ($segments as $segment) {
            if ($segment === '') {
                throw new InvalidOptions('An option segment is empty; each is spelled key:value.');
            }
            [$key, $text] = explode(':', $segment, 2) + [1 => ''];
            if (!isset($parsers[$key])) {
                ksort($parsers);
                $names = implode(', ', array_keys($parsers));
                throw self::refusal($segment, "the options are $names");
            }
            if ($text === '') {
                throw self::refusal($segment, "$key needs a value, spelled $key:value");
            }
            try {
                $values[$key] = $parsers[$key]($text);
            } catch (\UnexpectedValueException $error) {
                throw self::refusal($segment, $error->getMessage());
            }
            if (isset($raw[$key])) {
                throw self::refusal($segment, "$key may be given only once");
            }
            $raw[$key] = $segment;
        }
        $exp = isset($values['exp']) ? (int) $values['exp'] : null;
        unset($values['exp']);
        $values += ['f' => 'mp3'];
        $values += $values['f'] === 'peaks' ? self::PEAKS_DEFAULTS : [];
        foreach (self::rules() as $key => $rule) {
            $why = isset($values[$key]) ? $rule($values) : null;
            if ($why !== null) {
                throw self::refusal($raw[$key], $why);
            }
        }
        return [$values, $exp];
    }

    public static function percentDecode(string $text): string
    {
        if (preg_match('/%(?![0-9a-f]{2})/i', $text)) {
            throw new \UnexpectedValueException(
                'every % must start an escape of two hexadecimal digits'
            );
        }
        return rawurldecode($text);
    }

    /** Return the canonical spelling of a percent-encoded file name. */
    public static function fileName(string $text): string
    {
        $encoded = self::bytes($text);
        $name = rawurldecode($encoded);
        if (!preg_match('//u', $name)) {
            throw new \UnexpectedValueException('a UTF-8 file name is expected');
        }
        if (preg_match('~[\x00-\x1f\x7f-\x{9f}/\\\\]~u', $name)) {
            throw new \UnexpectedValueException(
                'a file name without control characters, / or \\ is expected'
            );
        }
        return $encoded;
    }

    private static function refusal(string $segment, string $why): InvalidOptions
    {
        $hex = static fn (array $match): string => '\\x' . bin2hex($match[0]);
        $shown = (string) preg_replace_callback('/[\x80-\xff]/', $hex, $segment);
        $quoted = strlen($shown) > 80 ? substr($shown, 0, 80) . '...' : $shown;
        return new InvalidOptions("\"$quoted\" is not accepted: $why.");
    }

    /**
     * The parsers of values. Each returns the shortest spelling.
     *
     * @return array<string, \Closure(string): string>
     */
    private static function parsers(): array
    {
        return [
            'f' => self::choice(...array_keys(self::FORMATS)),
            'br' => self::integer(),
            'q' => static fn (string $text): string => self::decimal($text),
            'sr' => self::integer(1000, 384_000),
            'ch' => self::choice('1', '2'),
            'bd' => self::choice('16', '24', '32f'),
            't' => self::trim(...),
            'fade' => self::fade(...),
            'gain' => static fn (string $text): string => self::decimal($text, -60, 60, true),
            'norm' => self::loudness(...),
            'enhance' => self::choice('voice'),
            'pts' => self::integer(1, 65_536),
            'pk_fmt' => self::choice('json', 'dat'),
            'pk_bits' => self::choice('8', '16'),
            'dl' => self::fileName(...),
            'cb' => self::bytes(...),
            'exp' => self::integer(0, 253_402_300_799),
        ];
    }

    private static function decimal(
        string $text,
        ?int $low = null,
        ?int $high = null,
        bool $plus = false,
    ): string {
        $bounds = $low === null ? '' : " from $low to $high";
        $isDecimal = preg_match('/^([+-]?)\d{1,9}(?:\.\d{1,3})?$/D', $text, $match);
        if (!$isDecimal || ($match[1] === '+' && !$plus)) {
            throw new \UnexpectedValueException(
                "a plain decimal$bounds with at most 3 fractional digits is expected"
            );
        }
        $number = (float) $text;
        if ($low !== null && ($number < $low || $number > $high)) {
            throw new \UnexpectedValueException("a number$bounds is expected");
        }
        // A conversion to a string would have the digits of the setting `precision`.
        return $number == 0 ? '0' : rtrim(rtrim(sprintf('%.3F', $number), '0'), '.');
    }

    private static function integer(?int $low = null, ?int $high = null): \Closure
    {
        return static function (string $text) use ($low, $high): string {
            $bounds = $low === null ? ' of at most 9 digits' : " from $low to $high";
            $longest = max(9, strlen((string) $high));
            $isWhole = preg_match('/^-?\d+$/D', $text) && strlen(ltrim($text, '-')) <= $longest;
            if (!$isWhole || ($low !== null && ((int) $text < $low || (int) $text > $high))) {
                throw new \UnexpectedValueException("a whole number$bounds is expected");
            }
            return (string) (int) $text;
        };
    }

    private static function choice(string ...$accepted): \Closure
    {
        return static function (string $text) use ($accepted): string {
            if (!in_array($text, $accepted, true)) {
                throw new \UnexpectedValueException(implode(' or ', $accepted) . ' is expected');
            }
            return $text;
        };
    }

    /** @return list<string> */
    private static function split(string $text, string $shape): array
    {
        $parts = explode(':', $text);
        if (count($parts) > 1 + substr_count($shape, ':')) {
            throw new \UnexpectedValueException("$shape is expected");
        }
        return $parts;
    }

    private static function seconds(string $text): string
    {
        return self::decimal($text, 0, 999_999_999);
    }

    private static function trim(string $text): string
    {
        $parts = self::split($text, 'start[:duration]');
        $duration = isset($parts[1]) ? self::seconds($parts[1]) : null;
        if ($duration === '0') {
            throw new \UnexpectedValueException('a duration longer than 0 is expected');
        }
        return self::seconds($parts[0]) . ($duration === null ? '' : ":$duration");
    }

    private static function fade(string $text): string
    {
        $lengths = array_map(self::seconds(...), self::split($text, 'in[:out]'));
        return $lengths[0] . (($lengths[1] ?? '0') === '0' ? '' : ":$lengths[1]");
    }

    private static function loudness(string $text): string
    {
        $parts = self::split($text, 'ebu[:I[:TP[:LRA]]]');
        if ($parts[0] !== 'ebu') {
            throw new \UnexpectedValueException('ebu is expected');
        }
        $targets = ['ebu', '-16', '-1.5', '11'];
        $bounds = [1 => [-70, -5], [-9, 0], [1, 50]];
        foreach (array_slice($parts, 1, null, true) as $i => $part) {
            $targets[$i] = self::decimal($part, ...$bounds[$i]);
        }
        return implode(':', $targets);
    }

    private static function bytes(string $text): string
    {
        $bytes = self::percentDecode($text);
        if (strlen($bytes) > 255) {
            throw new \UnexpectedValueException('at most 255 bytes are expected');
        }
        return rawurlencode($bytes);
    }

    /**
     * The rules for conflicts. Each returns what would be accepted, or null.
     *
     * @return array<string, \Closure(array<string, string>): ?string>
     */
    private static function rules(): array
    {
        $peaks = static fn (array $o): ?string =>
            $o['f'] === 'peaks' ? null : 'it goes with f:peaks only';
        return [
            'br' => self::bitrateRule(...),
            'q' => self::qualityRule(...),
            'sr' => self::rateRule(...),
            'bd' => self::depthRule(...),
            'fade' => self::fadeRule(...),
            'pts' => $peaks,
            'pk_fmt' => $peaks,
            'pk_bits' => $peaks,
        ];
    }

    private static function missing(string $f, string $what, string $key): string
    {
        $names = array_keys(array_filter(self::FORMATS, static fn ($row) => isset($row[$key])));
        $last = array_pop($names);
        return "f:$f has no $what to set; $key goes with " . implode(', ', $names) . " and $last";
    }

    private static function bitrateRule(array $o): ?string
    {
        $bounds = self::FORMATS[$o['f']]['br'] ?? null;
        if ($bounds === null) {
            return self::missing($o['f'], 'bitrate', 'br');
        }
        if (isset($o['q'])) {
            return 'br and q exclude each other; one of them is expected';
        }
        [$low, $high] = $bounds;
        return $o['br'] < $low || $o['br'] > $high ? "f:{$o['f']} takes $low to $high kbps" : null;
    }

    private static function qualityRule(array $o): ?string
    {
        $form = self::FORMATS[$o['f']];
        if (!isset($form['q'])) {
            return self::missing($o['f'], 'quality', 'q');
        }
        [$low, $high] = $form['q'];
        $whole = isset($form['whole']);
        if ($o['q'] >= $low && $o['q'] <= $high && !($whole && str_contains($o['q'], '.'))) {
            return null;
        }
        $kind = $whole ? 'a whole number' : 'a number';
        return "f:{$o['f']} takes $kind from $low to $high";
    }

    private static function rateRule(array $o): ?string
    {
        $form = self::FORMATS[$o['f']];
        $rate = (int) $o['sr'];
        $tens = $form['tens'] ?? $rate;
        return match (true) {
            $o['f'] === 'peaks' =>
                'f:peaks has no sample rate to set; sr goes with every other format',
            isset($form['br']) && $rate > 48000 => 'a lossy format takes at most 48000 Hz',
            isset($form['rates']) && !in_array($rate, $form['rates'], true) =>
                "f:{$o['f']} takes one of " . implode(', ', $form['rates']) . ' Hz',
            $rate > $tens && $rate % 10 > 0 =>
                "f:{$o['f']} takes only multiples of 10 above $tens Hz",
            default => null,
        };
    }

    private static function depthRule(array $o): ?string
    {
        $depths = self::FORMATS[$o['f']]['bd'] ?? null;
        if ($depths === null) {
            return self::missing($o['f'], 'bit depth', 'bd');
        }
        $isDepth = in_array($o['bd'], $depths, true);
        return $isDepth ? null : "f:{$o['f']} takes " . implode(' or ', $depths);
    }

    private static function fadeRule(array $o): ?string
    {
        $duration = explode(':', $o['t'] ?? '')[1] ?? null;
        $longest = max(array_map(floatval(...), explode(':', $o['fade'])));
        return $duration === null || $longest <= (float) $duration
            ? null
            : "t limits the output to $duration s, and a fade cannot be longer";
    }
}
