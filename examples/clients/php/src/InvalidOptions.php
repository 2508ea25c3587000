<?php

declare(strict_types=1);

namespace Audioproxy;

/** An option that the service refuses. The message quotes it. */
final class InvalidOptions extends \InvalidArgumentException
{
    /** The service's response. */
    public const STATUS = 422;
    public const CODE = 'invalid_options';

    public function __construct(string $message)
    {
        parent::__construct($message, self::STATUS);
    }
}
