# frozen_string_literal: true

module Audioproxy
  # Bytes and their spellings in URLs.
  module Bytes
    module_function

    # Returns the bytes of text. Text in other encodings than UTF-8 is converted.
    def of(text)
      binary = text.encoding == Encoding::BINARY || text.encoding == Encoding::UTF_8
      (binary ? text : text.encode(Encoding::UTF_8)).b
    end

    # Returns bytes percent-encoded, except for letters, digits, -._~ and other kept characters.
    def percent_encode(bytes, kept = "")
      bytes.b.gsub(/[^\w.~#{Regexp.escape(kept)}-]/n) { |c| format("%%%02X", c.ord) }
    end

    def percent_decode(text)
      if text.match?(/%(?!\h\h)/n)
        raise OptionError, "every % must start an escape of two hexadecimal digits"
      end

      text.gsub(/%(\h\h)/n) { Regexp.last_match(1).hex.chr }
    end

    def base64url(bytes)
      [bytes].pack("m0").tr("+/", "-_").delete("=")
    end

    # Raises a TypeError if an argument has another type.
    def require_type(name, value, types, accepted)
      return if types.any? { |type| value.is_a?(type) }

      raise TypeError, "#{name}: '#{value.class}' is not accepted; use #{accepted}"
    end
  end

  # A value that an option does not accept. The message says what would be accepted.
  class OptionError < StandardError
  end

  private_constant :Bytes, :OptionError
end
