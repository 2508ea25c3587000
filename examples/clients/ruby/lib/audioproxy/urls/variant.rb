# frozen_string_literal: true

module Audioproxy
  # The options of a variant, by their names in URLs. nil omits an option.
  #
  #     Audioproxy::Variant.new(f: "opus", br: 96, t: [30, 15], fade: [0.5, 2])
  #
  # f: output format; br: kbps; q: quality, on the scale of the format; sr: Hz; ch: channels; bd:
  # bit depth; t: seconds, a start or a start and a duration; fade: seconds, a fade-in or a fade-in
  # and a fade-out; gain: dB; norm: "ebu", or LUFS, dBTP and LU; enhance: a preset of filters; pts,
  # pk_fmt, pk_bits: of a waveform; dl: a file name, unencoded; cb: any bytes, unencoded.
  #
  # A Float or a Rational is rounded to 3 decimal places, which is what URLs have. A BigDecimal, or
  # text as in a URL, with more places is refused. A value that the service refuses is
  # InvalidOptions, a value of another type a TypeError, and an unknown name an ArgumentError.
  class Variant
    NAMES = %i[f br q sr ch bd t fade gain norm enhance pts pk_fmt pk_bits dl cb].freeze
    WHOLE = %i[br sr ch bd pts pk_bits].freeze
    WORDS = %i[f enhance pk_fmt].freeze
    ENCODED = %i[dl cb].freeze
    SEVERAL = %i[t fade norm].freeze

    # Names that other programs have for options, in lower case and without underscores.
    OTHER_NAMES = {
      "bitdepth" => :bd, "bitrate" => :br, "channels" => :ch, "codec" => :f, "download" => :dl,
      "fadein" => :fade, "fadeout" => :fade, "filename" => :dl, "format" => :f,
      "loudness" => :norm, "normalize" => :norm, "preset" => :enhance, "quality" => :q,
      "samplerate" => :sr, "trim" => :t, "volume" => :gain
    }.freeze

    private_constant :WHOLE, :WORDS, :ENCODED, :SEVERAL, :OTHER_NAMES

    # The options that are set, by name.
    attr_reader :values

    # The canonical options string, which the URLs contain.
    attr_reader :canonical

    # The Content-Type that the variant is served with.
    attr_reader :content_type

    def initialize(**values)
      values.each_key { |name| require_option(name) }
      given = { f: "mp3", **values.compact }
      @values = NAMES.filter_map { |name| [name, given[name]] if given.key?(name) }.to_h.freeze
      options, = Options.parse(@values.map { |name, value| spell_option(name, value) })
      @canonical = options.sort.map { |name, text| "#{name}:#{text}" }.join("/").freeze
      peaks_type = options[:pk_fmt] == "dat" ? "application/octet-stream" : "application/json"
      @content_type = Options::FORMATS[options[:f]].fetch(:type, peaks_type)
      freeze
    end

    # Returns the variant of option segments as they stand in a URL: "f:opus/br:96".
    def self.read(segments)
      Bytes.require_type("segments", segments, [String], "a String")
      options, exp = Options.parse(Bytes.of(segments).split("/", -1))
      if exp
        raise InvalidOptions, "\"exp:#{exp}\" is not accepted: a variant never expires; the URL " \
                              "does, with expires_in or expires_at."
      end

      ENCODED.each { |name| options[name] &&= Bytes.percent_decode(options[name]) }
      new(**options)
    end

    def to_s = canonical

    def inspect
      set = values.map { |name, value| "#{name}: #{value.inspect}" }
      "#<#{self.class} #{set.join(", ")}>"
    end

    def ==(other) = other.is_a?(Variant) && canonical == other.canonical

    alias eql? ==

    def hash = canonical.hash

    private

    def require_option(name)
      return if NAMES.include?(name)

      if name.start_with?("exp")
        raise ArgumentError, "Variant: #{name} is an argument of Signer#url, not of a variant"
      end

      meant = OTHER_NAMES[name.to_s.downcase.delete("_")]
      hint = meant ? "did you mean #{meant}?" : "use #{NAMES.join(", ")}"
      raise ArgumentError, "Variant: #{name} is not an option; #{hint}"
    end

    def spell_option(name, value)
      parts = SEVERAL.include?(name) && value.is_a?(Array) ? value : [value]
      spelled = parts.map { |part| spell_value(name, part) }
      spelled.unshift("ebu") if name == :norm && !value.is_a?(String)
      "#{name}:".b + spelled.join(":")
    end

    def spell_value(name, value)
      value = value.name if value.is_a?(Symbol) && WORDS.include?(name)
      types = WORDS.include?(name) || ENCODED.include?(name) ? [String] : [Numeric, String]
      Bytes.require_type(name, value, types, types.join(" or "))
      return Bytes.percent_encode(Bytes.of(value)) if ENCODED.include?(name)
      return Bytes.of(value) if value.is_a?(String)
      return spell_whole(value) if WHOLE.include?(name)

      spell_number(value)
    end

    def spell_whole(value)
      value.to_i == value ? value.to_i.to_s : value.to_s
    rescue FloatDomainError
      value.to_s
    end

    # Float#round and format do not round every number to the nearest one.
    def spell_number(value)
      return value.to_s if value.is_a?(Integer)
      return value.to_s("F") if defined?(BigDecimal) && value.is_a?(BigDecimal)

      number = (value.to_r * 1000).round(half: :even)
      format("%s%d.%03d", number.negative? ? "-" : "", *number.abs.divmod(1000))
    rescue FloatDomainError
      value.to_s
    end
  end
end
