# frozen_string_literal: true

module Audioproxy
  # The options of a variant: their values, and the conflicts between them.
  module Options
    MPEG = [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000].freeze
    AAC = [7350, *MPEG].freeze

    # Output formats: Content-Type, bounds of br and q, sample rates, bit depths.
    FORMATS = {
      "mp3" => { type: "audio/mpeg", br: [8, 320], q: [0, 9], rates: MPEG },
      "opus" => { type: "audio/ogg", br: [6, 510], q: [0, 10], whole: true,
                  rates: [8000, 12000, 16000, 24000, 48000] },
      "ogg" => { type: "audio/ogg", br: [32, 500], q: [-1, 10] },
      "aac" => { type: "audio/aac", br: [8, 512], q: [0.1, 2], rates: AAC },
      "m4a" => { type: "audio/mp4", br: [8, 512], q: [0.1, 2], rates: AAC },
      "flac" => { type: "audio/flac", q: [0, 12], whole: true, tens: 65_534, bd: %w[16 24] },
      "wav" => { type: "audio/wav", bd: %w[16 24 32f] },
      "peaks" => {}
    }.freeze

    PEAKS_DEFAULTS = { ch: "1", pts: "800", pk_fmt: "json", pk_bits: "16" }.freeze

    module_function

    # Returns the canonical values of option segments by name, and exp.
    def parse(segments)
      raw = {}
      values = {}
      segments.each do |segment|
        key, value = parse_segment(segment)
        refuse(segment, "#{key} may be given only once") if raw.key?(key)
        raw[key] = segment
        values[key] = value
      end
      exp = values.delete(:exp)
      values = { f: "mp3", **(values[:f] == "peaks" ? PEAKS_DEFAULTS : {}), **values }
      RULES.each do |key, rule|
        why = rule.call(values) if values.key?(key)
        refuse(raw[key], why) if why
      end
      [values, exp&.to_i]
    end

    def parse_segment(segment)
      if segment.empty?
        raise InvalidOptions, "An option segment is empty; each is spelled key:value."
      end

      name, _, text = segment.partition(":")
      key = PARSERS.keys.find { |each| each.name == name }
      refuse(segment, "the options are #{PARSERS.keys.sort.join(", ")}") unless key
      refuse(segment, "#{key} needs a value, spelled #{key}:value") if text.empty?
      [key, PARSERS[key].call(text)]
    rescue OptionError => e
      refuse(segment, e.message)
    end

    def refuse(segment, why)
      shown = segment.b.gsub(/[\x80-\xff]/n) { |c| format("\\x%02x", c.ord) }
      quoted = shown.size > 80 ? "#{shown[0, 80]}..." : shown
      raise InvalidOptions, "\"#{quoted}\" is not accepted: #{why}."
    end

    # The parsers of values. Each returns the shortest spelling.

    def decimal(text, low = nil, high = nil, plus: false)
      bounds = low && " from #{low} to #{high}"
      match = /\A([+-]?)\d{1,9}(?:\.\d{1,3})?\z/n.match(text)
      if match.nil? || (match[1] == "+" && !plus)
        raise OptionError, "a plain decimal#{bounds} with at most 3 fractional digits is expected"
      end

      number = text.to_f
      raise OptionError, "a number#{bounds} is expected" if low && !number.between?(low, high)

      number.zero? ? "0" : number.to_s.delete_suffix(".0")
    end

    def integer(low = nil, high = nil)
      longest = [9, high.to_s.size].max
      bounds = low ? " from #{low} to #{high}" : " of at most 9 digits"
      lambda do |text|
        whole = text.match?(/\A-?\d+\z/n) && text.delete("-").size <= longest
        if !whole || (low && !text.to_i.between?(low, high))
          raise OptionError, "a whole number#{bounds} is expected"
        end

        text.to_i.to_s
      end
    end

    def choice(*accepted)
      lambda do |text|
        raise OptionError, "#{accepted.join(" or ")} is expected" unless accepted.include?(text)

        text
      end
    end

    def split(text, shape)
      parts = text.split(":", -1)
      raise OptionError, "#{shape} is expected" if parts.size > shape.count(":") + 1

      parts
    end

    def seconds(text) = decimal(text, 0, 999_999_999)

    def trim(text)
      start, duration = split(text, "start[:duration]")
      duration &&= seconds(duration)
      raise OptionError, "a duration longer than 0 is expected" if duration == "0"

      [seconds(start), *duration].join(":")
    end

    def fade(text)
      fade_in, fade_out = split(text, "in[:out]").map { |part| seconds(part) }
      [fade_in, *(fade_out unless fade_out == "0")].join(":")
    end

    def loudness(text)
      name, *given = split(text, "ebu[:I[:TP[:LRA]]]")
      raise OptionError, "ebu is expected" unless name == "ebu"

      bounds = [[-70, -5], [-9, 0], [1, 50]]
      given = given.zip(bounds).map { |target, (low, high)| decimal(target, low, high) }
      ["ebu", *given, *%w[-16 -1.5 11].drop(given.size)].join(":")
    end

    def bytes(text)
      value = Bytes.percent_decode(text)
      raise OptionError, "at most 255 bytes are expected" if value.bytesize > 255

      Bytes.percent_encode(value)
    end

    def file_name(text)
      encoded = bytes(text)
      name = Bytes.percent_decode(encoded).force_encoding(Encoding::UTF_8)
      raise OptionError, "a UTF-8 file name is expected" unless name.valid_encoding?

      if name.match?(%r{[\u0000-\u001f\u007f-\u009f/\\]})
        raise OptionError, "a file name without control characters, / or \\ is expected"
      end

      encoded
    end

    # The rules for conflicts. Each returns what would be accepted, or nil.

    def missing(form, what, key)
      *names, last = FORMATS.keys.select { |name| FORMATS[name][key] }
      "f:#{form} has no #{what} to set; #{key} goes with #{names.join(", ")} and #{last}"
    end

    def bitrate_rule(values)
      low, high = FORMATS[values[:f]][:br]
      return missing(values[:f], "bitrate", :br) unless low
      return "br and q exclude each other; one of them is expected" if values[:q]

      "f:#{values[:f]} takes #{low} to #{high} kbps" unless values[:br].to_i.between?(low, high)
    end

    def quality_rule(values)
      row = FORMATS[values[:f]]
      low, high = row[:q]
      return missing(values[:f], "quality", :q) unless low
      return if values[:q].to_f.between?(low, high) && !(row[:whole] && values[:q].include?("."))

      "f:#{values[:f]} takes #{row[:whole] ? "a whole number" : "a number"} from #{low} to #{high}"
    end

    def rate_rule(values)
      row = FORMATS[values[:f]]
      rate = values[:sr].to_i
      if values[:f] == "peaks"
        "f:peaks has no sample rate to set; sr goes with every other format"
      elsif row[:br] && rate > 48_000
        "a lossy format takes at most 48000 Hz"
      elsif row[:rates] && !row[:rates].include?(rate)
        "f:#{values[:f]} takes one of #{row[:rates].join(", ")} Hz"
      elsif row[:tens] && rate > row[:tens] && rate % 10 != 0
        "f:#{values[:f]} takes only multiples of 10 above #{row[:tens]} Hz"
      end
    end

    def depth_rule(values)
      depths = FORMATS[values[:f]][:bd]
      return missing(values[:f], "bit depth", :bd) unless depths

      "f:#{values[:f]} takes #{depths.join(" or ")}" unless depths.include?(values[:bd])
    end

    def fade_rule(values)
      duration = values[:t]&.split(":")&.at(1)
      return unless duration && values[:fade].split(":").map(&:to_f).max > duration.to_f

      "t limits the output to #{duration} s, and a fade cannot be longer"
    end

    def peaks_rule(values)
      "it goes with f:peaks only" unless values[:f] == "peaks"
    end

    PARSERS = {
      f: choice(*FORMATS.keys),
      br: integer,
      q: method(:decimal),
      sr: integer(1000, 384_000),
      ch: choice("1", "2"),
      bd: choice("16", "24", "32f"),
      t: method(:trim),
      fade: method(:fade),
      gain: ->(text) { decimal(text, -60, 60, plus: true) },
      norm: method(:loudness),
      enhance: choice("voice"),
      pts: integer(1, 65_536),
      pk_fmt: choice("json", "dat"),
      pk_bits: choice("8", "16"),
      dl: method(:file_name),
      cb: method(:bytes),
      exp: integer(0, 253_402_300_799)
    }.freeze

    RULES = {
      br: method(:bitrate_rule),
      q: method(:quality_rule),
      sr: method(:rate_rule),
      bd: method(:depth_rule),
      fade: method(:fade_rule),
      pts: method(:peaks_rule),
      pk_fmt: method(:peaks_rule),
      pk_bits: method(:peaks_rule)
    }.freeze
  end

  private_constant :Options
end
