<?php

declare(strict_types=1);

namespace Audioproxy;

/**
 * The options of a variant, by their names in URLs. null omits an option.
 *
 * `t: 30` starts at second 30, `t: [30, 15]` lasts 15 seconds from there. `norm: 'ebu'` has the
 * service's default targets, `norm: [-14, -1]` has others. A float is rounded to 3 decimal places,
 * which is what URLs have. Text with more places is refused.
 */
final class Variant implements \Stringable
{
    private const WHOLE = ['br', 'sr', 'ch', 'bd', 'pts', 'pk_bits'];
    private const ENCODED = ['dl', 'cb'];

    /** Names that other programs have for options, in lower case and without underscores. */
    private const OTHER_NAMES = [
        'bitdepth' => 'bd', 'bitrate' => 'br', 'channels' => 'ch', 'codec' => 'f',
        'download' => 'dl', 'fadein' => 'fade', 'fadeout' => 'fade', 'filename' => 'dl',
        'format' => 'f', 'loudness' => 'norm', 'normalize' => 'norm', 'preset' => 'enhance',
        'quality' => 'q', 'samplerate' => 'sr', 'trim' => 't', 'volume' => 'gain',
    ];

    /** @var array<string, int|float|string|array<int|float|string>> the options that are set */
    public readonly array $values;

    /** The canonical options string, which the URLs contain. */
    public readonly string $canonical;

    /** The Content-Type that the variant is served with. */
    public readonly string $contentType;

    /**
     * @param ?string $f output format
     * @param int|float|string|null $br kbps
     * @param int|float|string|null $q quality, on the scale of the format
     * @param int|float|string|null $sr Hz
     * @param int|float|string|null $ch channels
     * @param int|float|string|null $bd bit depth
     * @param int|float|string|array<int|float|string>|null $t seconds: start, duration
     * @param int|float|string|array<int|float|string>|null $fade seconds: fade-in, fade-out
     * @param int|float|string|null $gain dB
     * @param int|float|string|array<int|float|string>|null $norm LUFS, dBTP, LU
     * @param ?string $enhance preset of filters
     * @param int|float|string|null $pts pixels of a waveform
     * @param ?string $pk_fmt serialization of a waveform
     * @param int|float|string|null $pk_bits bits of each value of a waveform
     * @param ?string $dl file name, unencoded
     * @param ?string $cb any bytes, unencoded
     * @throws InvalidOptions for a value or a conflict that the service refuses
     * @throws \TypeError for a value of another type
     * @throws \InvalidArgumentException for a name that is no option
     */
    public function __construct(
        ?string $f = 'mp3',
        int|float|string|null $br = null,
        int|float|string|null $q = null,
        int|float|string|null $sr = null,
        int|float|string|null $ch = null,
        int|float|string|null $bd = null,
        int|float|string|array|null $t = null,
        int|float|string|array|null $fade = null,
        int|float|string|null $gain = null,
        int|float|string|array|null $norm = null,
        ?string $enhance = null,
        int|float|string|null $pts = null,
        ?string $pk_fmt = null,
        int|float|string|null $pk_bits = null,
        ?string $dl = null,
        ?string $cb = null,
        mixed ...$others,
    ) {
        $all = compact('f', 'br', 'q', 'sr', 'ch', 'bd', 't', 'fade', 'gain', 'norm', 'enhance')
            + compact('pts', 'pk_fmt', 'pk_bits', 'dl', 'cb');
        foreach (array_keys($others) as $name) {
            throw new \InvalidArgumentException(self::hint((string) $name, array_keys($all)));
        }
        $this->values = array_filter($all, static fn ($value): bool => $value !== null);
        $segments = [];
        foreach ($this->values as $name => $value) {
            $segments[] = self::spellOption($name, $value);
        }
        [$options] = Options::parse($segments);
        ksort($options);
        $spell = static fn (string $name, string $text): string => "$name:$text";
        $this->canonical = implode('/', array_map($spell, array_keys($options), $options));
        $dat = ($options['pk_fmt'] ?? '') === 'dat';
        $this->contentType = Options::FORMATS[$options['f']]['type']
            ?? ($dat ? 'application/octet-stream' : 'application/json');
    }

    /**
     * Return the variant of option segments as they stand in a URL: `f:opus/br:96`.
     *
     * @throws InvalidOptions for segments that the service refuses, and for exp
     */
    public static function read(string $segments): self
    {
        [$options, $exp] = Options::parse($segments === '' ? [] : explode('/', $segments));
        if ($exp !== null) {
            throw new InvalidOptions(
                "\"exp:$exp\" is not accepted: a variant never expires; the URL does, with"
                . ' expiresIn or expiresAt.'
            );
        }
        foreach (array_intersect_key($options, array_flip(self::ENCODED)) as $name => $text) {
            $options[$name] = rawurldecode($text);
        }
        return new self(...$options);
    }

    public function __toString(): string
    {
        return $this->canonical;
    }

    private static function spellOption(string $name, int|float|string|array $value): string
    {
        $spelled = [];
        foreach (is_array($value) && array_is_list($value) ? $value : [$value] as $part) {
            if (!is_int($part) && !is_float($part) && !is_string($part)) {
                $type = get_debug_type($part);
                throw new \TypeError("$name: '$type' is not accepted; use numbers or strings");
            }
            $spelled[] = match (true) {
                in_array($name, self::ENCODED, true) => rawurlencode((string) $part),
                is_float($part) && !in_array($name, self::WHOLE, true) => sprintf('%.3F', $part),
                is_float($part) && floor($part) === $part => sprintf('%.0F', $part),
                default => (string) $part,
            };
        }
        if ($name === 'norm' && !is_string($value)) {
            array_unshift($spelled, 'ebu');
        }
        return "$name:" . implode(':', $spelled);
    }

    /** @param list<string> $names */
    private static function hint(string $name, array $names): string
    {
        if (str_starts_with($name, 'exp')) {
            return "Variant: $name is an argument of Signer::url, not of a variant";
        }
        $meant = self::OTHER_NAMES[str_replace('_', '', strtolower($name))] ?? null;
        $hint = $meant === null ? 'use ' . implode(', ', $names) : "did you mean $meant?";
        return "Variant: $name is not an option; $hint";
    }
}
