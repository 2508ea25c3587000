# frozen_string_literal: true

# Signed URLs for audioproxy: builds what the service accepts, and refuses what it refuses.
module Audioproxy
  # An option that the service refuses. The message quotes it.
  class InvalidOptions < ArgumentError
    def status = 422

    def code = "invalid_options"
  end

  # A malformed source. The message says why.
  class NotFound < ArgumentError
    def status = 404

    def code = "not_found"
  end

  # An expiry in the past.
  class Expired < ArgumentError
    def status = 410

    def code = "expired"
  end
end

require_relative "urls/bytes"
require_relative "urls/options"
require_relative "urls/variant"
require_relative "urls/source"
require_relative "urls/signer"
