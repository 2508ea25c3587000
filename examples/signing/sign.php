<?php
// Sign paths for audioproxy with PHP.
//
//     AP_KEY=... AP_SALT=... php sign.php /f:opus/br:96/plain/local://piece.wav ...

declare(strict_types=1);

/**
 * Return the path with its signature in front.
 *
 * Common mistakes:
 *
 * - hashing the hexadecimal text and not the decoded bytes
 * - hash_hmac() without its last argument, which returns hexadecimal digits
 * - the standard alphabet with + and /, or keeping the padding
 * - signing a decoded path ($_GET and PATH_INFO are decoded), or a path with a host or a query
 *
 * Encode the parts of a path with rawurlencode(): urlencode() encodes a space as +.
 */
function sign(string $keyHex, string $saltHex, string $path): string
{
    if (!preg_match('/^(?:[0-9a-f]{2}){32,}$/iD', $keyHex)) {
        throw new InvalidArgumentException(
            'AP_KEY must be at least 32 bytes in hexadecimal digits'
        );
    }
    if (!preg_match('/^(?:[0-9a-f]{2})+$/iD', $saltHex)) {
        throw new InvalidArgumentException(
            'AP_SALT must be at least 1 byte in hexadecimal digits'
        );
    }
    // Visible ASCII without # and ?.
    if (!preg_match('|^/[!"$->@-~]*$|D', $path)) {
        throw new InvalidArgumentException(
            'a path starts with a slash, is percent-encoded and has no query'
        );
    }
    $digest = hash_hmac('sha256', hex2bin($saltHex) . $path, hex2bin($keyHex), true);
    return '/' . rtrim(strtr(base64_encode($digest), '+/', '-_'), '=') . $path;
}

try {
    foreach (array_slice($argv, 1) as $path) {
        echo sign((string) getenv('AP_KEY'), (string) getenv('AP_SALT'), $path), "\n";
    }
} catch (InvalidArgumentException $error) {
    fwrite(STDERR, "sign.php: {$error->getMessage()}\n");
    exit(1);
}
