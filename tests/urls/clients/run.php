<?php
// Answers the calls of tests/urls/calls.py with the client in PHP.

declare(strict_types=1);

use Audioproxy\{Expired, InvalidOptions, NotFound, Signer, Source, Variant};

spl_autoload_register(static function (string $class): void {
    $file = substr($class, strlen('Audioproxy\\')) . '.php';
    require __DIR__ . "/../../../examples/clients/php/src/$file";
});
set_error_handler(static function (int $kind, string $message): never {
    throw new ErrorException($message);
});

function raw(mixed $value): mixed
{
    $encoded = is_array($value) ? $value['base64url'] ?? null : null;
    return $encoded === null ? $value : base64_decode(strtr($encoded, '-_', '+/'));
}

function answer(array $call): string
{
    ['call' => $name] = $call;
    if ($name === 'read') {
        $variant = Variant::read($call['segments']);
        return "$variant->canonical $variant->contentType";
    }
    if (in_array($name, ['local', 's3', 'https', 'read_source'], true)) {
        $make = $name === 'read_source' ? 'read' : $name;
        $bytes = Source::$make(...array_map(raw(...), $call['arguments']))->canonical;
        return rtrim(strtr(base64_encode($bytes), '+/', '-_'), '=');
    }
    if ($name === 'from_env') {
        return Signer::fromEnv($call['environ'])->sign('/');
    }
    ['now' => $now, 'key' => $key, 'salt' => $salt] = $given = $call['signer'];
    $now = static fn () => $now;
    $signer = new Signer(hex2bin($key), hex2bin($salt), $given['base'], $given['encoded'], $now);
    unset($call['call'], $call['signer']);
    $arguments = [];
    foreach ($call as $key => $value) {
        $camel = lcfirst(str_replace('_', '', ucwords($key, '_')));
        $arguments[$camel] = $key === 'variant' ? new Variant(...$value) : raw($value);
    }
    $method = lcfirst(str_replace('_', '', ucwords($name, '_')));
    return $signer->$method(...$arguments);
}

$answers = [];
foreach (json_decode(stream_get_contents(STDIN), true, flags: JSON_THROW_ON_ERROR) as $call) {
    try {
        $answers[] = ['text' => answer($call)];
    } catch (InvalidOptions | NotFound | Expired $error) {
        $refusal = ['code' => $error::CODE, 'status' => $error->getCode()];
        $answers[] = $refusal + ['message' => $error->getMessage()];
    } catch (InvalidArgumentException | TypeError $error) {
        $answers[] = ['code' => null, 'message' => $error->getMessage()];
    }
}
echo json_encode($answers, JSON_THROW_ON_ERROR | JSON_INVALID_UTF8_SUBSTITUTE), "\n";
