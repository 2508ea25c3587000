# frozen_string_literal: true

require "openssl"

module Audioproxy
  # Creates URLs that a service with the same key and salt accepts.
  class Signer
    CODECS = { "opus" => "; codecs=opus", "ogg" => "; codecs=vorbis" }.freeze

    private_constant :CODECS

    # The text before the signature: an origin, a path, both, or nothing.
    attr_reader :base

    # key: AP_KEY, decoded: at least 32 bytes. salt: AP_SALT, decoded: at least 1 byte.
    # encoded: write every source in base64url, which hides its name from a casual reader; this is
    # not encryption. now: returns Unix time in seconds.
    def initialize(key, salt, base = "", encoded: false, now: -> { Time.now.to_f })
      Bytes.require_type("key", key, [String], "a String")
      Bytes.require_type("salt", salt, [String], "a String")
      Bytes.require_type("base", base, [String], "a String")
      if key.bytesize < 32
        raise ArgumentError,
              "a key is at least 32 bytes; Signer.from_hex accepts the text of AP_KEY"
      end
      if salt.empty?
        raise ArgumentError,
              "a salt is at least 1 byte; Signer.from_hex accepts the text of AP_SALT"
      end

      @key = key.b
      @salt = salt.b
      @base = base.sub(%r{/+\z}, "")
      @encoded = encoded
      @now = now
      if @base.end_with?("/media")
        raise ArgumentError, "a base must not end in /media, which URLs with a file name add to it"
      end
      return if base.match?(%r{\A(?:https?://[A-Za-z0-9._:\[\]-]+)?(?:/[!$-;=@-Z_a-z~]*)?\z})

      raise ArgumentError,
            "a base is an origin such as https://audio.example, a path such as /audio, or both"
    end

    class << self
      # Returns the signer for the values of AP_KEY and AP_SALT.
      def from_hex(key, salt, base = "", **options)
        new(secret("AP_KEY", key, 32), secret("AP_SALT", salt, 1), base, **options)
      end

      # Returns the signer for AP_KEY and AP_SALT of a Hash such as ENV.
      def from_env(environ = ENV, base = "", **options)
        key, salt = %w[AP_KEY AP_SALT].map do |name|
          value = environ[name]
          if value.nil? || value.empty?
            raise ArgumentError, "#{name}: not set; use the value that the service has"
          end

          value
        end
        from_hex(key, salt, base, **options)
      end

      private

      def secret(name, text, least)
        Bytes.require_type(name, text, [String], "a String")
        digits = text.size
        fault = if text != text.strip
                  "white space around the value"
                elsif (invalid = text.index(/\H/))
                  "character #{invalid + 1} of #{digits} is not a hexadecimal digit"
                elsif digits.odd?
                  "an odd number of hexadecimal digits, #{digits}, but each byte has two"
                elsif digits < 2 * least
                  "#{digits / 2} byte#{"s" unless digits == 2}"
                end
        return [text].pack("H*") unless fault

        amount, verb = least == 1 ? ["1 byte", "is"] : ["#{least} bytes", "are"]
        raise ArgumentError, "#{name}: #{fault}; at least #{amount} written as hexadecimal #{verb} " \
                             "required, such as `openssl rand -hex #{[least, 16].max}` prints"
      end
    end

    # Returns the signed URL of a variant, by default an mp3 without other options.
    #
    # A fraction of a second is rounded up: the URL never expires early.
    #
    # expires_in: seconds until the service refuses the URL. expires_at: the same point in time, a
    # Time or Unix seconds. round_to: expire later than expires_in, at the next multiple of this
    # time (UTC); with 86_400, all URLs of a day are the same. file_name: end the URL in this name,
    # for podcast directories, and put /media before the signature; the balancer in front has to
    # remove both. A time that has passed is Expired, and a malformed source NotFound.
    def url(source, variant = Variant.new, expires_in: nil, expires_at: nil, round_to: nil,
            file_name: nil)
      Bytes.require_type("variant", variant, [Variant], "Variant.new or Variant.read")
      exp = expiry(expires_in, expires_at, round_to)
      path = "/#{[variant.canonical, *("exp:#{exp}" if exp)].join("/")}/#{spell_source(source)}"
      return sign(path) unless file_name

      "#{@base}/media#{signed(path)}/#{encode_file_name(file_name, variant)}"
    end

    # Returns an HTML <audio> element with a variant in each format, the smallest first.
    #
    # Browsers play the first one that they support. With preload="none", they request it when the
    # listener presses play, so a page view renders nothing.
    #
    # variant: the other options; each of the formats replaces its f. attributes: of the element, as
    # they stand in HTML.
    def audio_element(source, variant = Variant.new, formats: %w[opus m4a mp3],
                      attributes: 'controls preload="none"', **expiry)
      expires_at = expiry(*expiry_arguments(**expiry))
      sources = formats.map do |form|
        each = Variant.new(**variant.values, f: form)
        url = url(source, each, expires_at: expires_at).gsub(/[&"'<>]/) { |c| "&##{c.ord};" }
        "<source src=\"#{url}\" type=\"#{each.content_type}#{CODECS[form.to_s]}\">"
      end
      "<audio #{attributes}>#{sources.join}</audio>"
    end

    # Returns the signed URL of a source's info document. It has no options or expiry.
    def info_url(source)
      sign("/info/#{spell_source(source)}")
    end

    # Returns the base, the signature and a path that the caller wrote: everything after the
    # signature, percent-encoded as it is sent.
    def sign(path)
      @base + signed(path)
    end

    # Without the secrets.
    def inspect = "#<#{self.class} base: #{@base.inspect}, encoded: #{@encoded}>"

    private

    def signed(path)
      Bytes.require_type("path", path, [String], "a String")
      unless path.match?(%r{\A/[!$-;=@-\[\]_a-z|~]*\z})
        raise ArgumentError, "a path starts with a slash, is percent-encoded and has no query"
      end
      if path.match?(%r{/(?:\.|%2e){1,2}(?:/|\z)}i)
        raise ArgumentError, "clients remove . and .. segments from a path; use enc/"
      end

      "/#{Bytes.base64url(OpenSSL::HMAC.digest("SHA256", @key, @salt + path.b))}#{path}"
    end

    def expiry_arguments(expires_in: nil, expires_at: nil, round_to: nil)
      [expires_in, expires_at, round_to]
    end

    # Returns exp in Unix seconds, or nil for a URL that never expires.
    def expiry(expires_in, expires_at, round_to)
      if expires_in && expires_at
        raise ArgumentError, "expires_in and expires_at exclude each other"
      end
      raise ArgumentError, "round_to goes with expires_in" if round_to && !expires_in

      now = @now.call.floor
      if expires_in
        exp = now + whole_seconds("expires_in", expires_in)
        if round_to
          step = whole_seconds("round_to", round_to)
          raise ArgumentError, "round_to: at least 1 second is expected" if step < 1

          exp += -exp % step
        end
      elsif expires_at
        expires_at = expires_at.to_r if expires_at.is_a?(Time)
        exp = whole_seconds("expires_at", expires_at, "a number of Unix seconds or a Time")
      else
        return
      end
      Options.parse(["exp:#{exp}"])
      raise Expired, "This URL has expired." if now > exp

      exp
    end

    def whole_seconds(name, value, accepted = "a number of seconds")
      Bytes.require_type(name, value, [Numeric], accepted)
      value.ceil
    rescue FloatDomainError
      raise ArgumentError, "#{name}: #{value} is not a number of seconds"
    end

    def spell_source(source)
      bytes = Audioproxy.read_source(source).canonical
      # Clients remove dot segments before they send a path, which makes the signature wrong.
      if @encoded || bytes.match?(%r{(?:\A|/)\.{1,2}(?:/|\z)}n)
        "enc/#{Bytes.base64url(bytes)}"
      else
        "plain/#{Bytes.percent_encode(bytes, "/:")}"
      end
    end

    def encode_file_name(name, variant)
      Bytes.require_type("file_name", name, [String], "a String")
      encoded = Options.file_name(Bytes.percent_encode(Bytes.of(name)))
      type = variant.content_type
      extensions = Options::FORMATS.keys.select { |form| Options::FORMATS[form][:type] == type }
      extensions = [variant.values.fetch(:pk_fmt, "json")] if extensions.empty?
      return encoded if extensions.any? { |each| name.end_with?(".#{each}") && name != ".#{each}" }

      endings = extensions.map { |each| ".#{each}" }.join(" or ")
      raise ArgumentError, "file name '#{name}': a name that ends in #{endings} suits #{type}"
    rescue OptionError => e
      raise ArgumentError, "file name '#{name}': #{e.message}"
    end
  end
end
