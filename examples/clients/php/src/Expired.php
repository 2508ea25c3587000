<?php

declare(strict_types=1);

namespace Audioproxy;

/** An expiry in the past. */
final class Expired extends \InvalidArgumentException
{
    /** The service's response. */
    public const STATUS = 410;
    public const CODE = 'expired';

    public function __construct(string $message)
    {
        parent::__construct($message, self::STATUS);
    }
}
