# frozen_string_literal: true

# Sign paths for audioproxy with Ruby.
#
#     AP_KEY=... AP_SALT=... ruby sign.rb /f:opus/br:96/plain/local://piece.wav ...

require "openssl"

# Returns the path with its signature in front.
#
# Common mistakes:
#
# - hashing the hexadecimal text and not the decoded bytes
# - hexdigest instead of digest
# - the standard alphabet with + and /
# - keeping the padding, or the line feeds of Base64.encode64
# - signing a decoded path, or a path with a host or a query
#
# Sign exactly the bytes of the request.
def sign(key_hex, salt_hex, path)
  # pack("H*") alone accepts any letter as a digit.
  unless key_hex.match?(/\A(?:\h\h){32,}\z/)
    raise ArgumentError, "AP_KEY must be at least 32 bytes in hexadecimal digits"
  end
  unless salt_hex.match?(/\A(?:\h\h)+\z/)
    raise ArgumentError, "AP_SALT must be at least 1 byte in hexadecimal digits"
  end
  # Visible ASCII without # and ?.
  unless path.match?(%r{\A/[!"$->@-~]*\z})
    raise ArgumentError, "a path starts with a slash, is percent-encoded and has no query"
  end

  key, salt = [key_hex, salt_hex].map { |digits| [digits].pack("H*") }
  digest = OpenSSL::HMAC.digest("SHA256", key, salt + path.b)
  "/#{[digest].pack("m0").tr("+/", "-_").delete("=")}#{path}"
end

begin
  ARGV.each { |path| puts sign(ENV.fetch("AP_KEY", ""), ENV.fetch("AP_SALT", ""), path) }
rescue ArgumentError => e
  abort "sign.rb: #{e.message}"
end
