<?php

declare(strict_types=1);

namespace Audioproxy;

/** A malformed source. */
final class NotFound extends \InvalidArgumentException
{
    /** The service's response. */
    public const STATUS = 404;
    public const CODE = 'not_found';

    public function __construct(string $message)
    {
        parent::__construct($message, self::STATUS);
    }
}
