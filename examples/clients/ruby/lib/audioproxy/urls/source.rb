# frozen_string_literal: true

require "ipaddr"

module Audioproxy
  # A source that was checked; `local`, `s3`, `https` and `read_source` make them.
  class Source
    # Its string without any encoding.
    attr_reader :canonical

    def initialize(canonical)
      @canonical = canonical.b.freeze
      freeze
    end

    def to_s = canonical.dup.force_encoding(Encoding::UTF_8)

    def ==(other) = other.is_a?(Source) && canonical == other.canonical

    alias eql? ==

    def hash = canonical.hash

    class << self
      def parse_local(rest)
        if rest.empty? || rest.start_with?("/") || rest.include?("\0")
          raise NotFound, "a local path is relative, not empty, and has no NUL"
        end
        if rest.bytesize > 1024 || rest.count("/") >= 64
          raise NotFound, "a local path has at most 64 components and 1024 bytes"
        end

        depth = 0
        rest.split("/").each do |component|
          depth += { ".." => -1, "." => 0, "" => 0 }.fetch(component, 1)
          raise NotFound, "the path leaves the root" if depth.negative?
        end
        new("local://#{rest}")
      end

      def parse_s3(rest)
        bucket, _, key = rest.partition("/")
        unless bucket.match?(/\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\z/n)
          raise NotFound, "a bucket is 1 to 63 letters, digits, dots, hyphens and underscores"
        end
        raise NotFound, "a key has 1 to 1024 bytes" unless key.bytesize.between?(1, 1024)

        new("s3://".b + bucket + "/" + key)
      end

      def parse_https(rest)
        if rest.bytesize > 2048 - 8 || !rest.match?(/\A[!-~]*\z/n)
          raise NotFound, "a URL has at most 2048 bytes, all printable ASCII"
        end

        authority, path, query = %r{\A([^/?#]*)([^?#]*)(\?[^#]*)?}n.match(rest).captures
        match = /\A(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?\z/n.match(authority)
        unless match
          raise NotFound, "a URL has a plain host, an optional port and no user information"
        end

        host = normalize_host(match[1])
        port = match[2].to_s.empty? ? 443 : match[2].to_i
        raise NotFound, "a port is 1 to 65535" unless port.between?(1, 65_535)

        shown_port = ":#{port}" unless port == 443
        new("https://#{host}#{shown_port}#{path.empty? ? "/" : path}#{query unless query == "?"}")
      end

      private

      def normalize_host(host)
        return "[#{normalize_ipv6(host[1..-2])}]" if host.start_with?("[")

        normalized = host.downcase.delete_suffix(".")
        sizes = normalized.split(".", -1).map(&:size)
        if normalized.empty? || normalized.size > 253 || sizes.min < 1 || sizes.max > 63
          raise NotFound, "a host has at most 253 bytes, in labels of 1 to 63"
        end

        normalized
      end

      # Returns an address as RFC 5952, 4 spells it, without a part in the form of IPv4.
      def normalize_ipv6(address)
        groups = IPAddr.new(address, Socket::AF_INET6).hton.unpack("n8")
        text = groups.map { |group| group.to_s(16) }.join(":")
        longest = text.scan(/\b0(?::0)+\b/).max_by(&:size)
        return text unless longest

        head, tail = text.split(/\b#{longest}\b/, 2)
        "#{head.delete_suffix(":")}::#{tail.delete_prefix(":")}"
      rescue IPAddr::Error
        raise NotFound, "a host in brackets is an IPv6 address"
      end
    end

    private_class_method :new
  end

  module_function

  # Returns the source that is a file below AP_LOCAL_ROOT. `path` is a String or a Pathname.
  def local(path)
    path = path.to_path if path.respond_to?(:to_path)
    Bytes.require_type("path", path, [String], "a String or Pathname")
    bytes = Bytes.of(path)
    if bytes.start_with?("/")
      raise NotFound, "path: '#{path}' is absolute; use the path relative to AP_LOCAL_ROOT"
    end

    Source.parse_local(bytes)
  end

  # Returns the source that is an object in a bucket.
  def s3(bucket, key)
    Bytes.require_type("bucket", bucket, [String], "a String")
    Bytes.require_type("key", key, [String], "a String")
    raise NotFound, "a bucket name has no slash" if bucket.include?("/")

    Source.parse_s3(Bytes.of(bucket) + "/" + Bytes.of(key))
  end

  # Returns the source at an https URL, with every character escaped that a URL may not hold. Valid
  # escapes such as %20 stay as they are. ? begins the query, and # the fragment, which is removed.
  def https(url)
    Bytes.require_type("url", url, [String], "a String")
    match = %r{\Ahttps://([^/?#]*)(.*)\z}mni.match(Bytes.of(url))
    raise NotFound, "a URL starts with https://" unless match

    host, rest = match.captures
    unless host.ascii_only?
      raise NotFound, "a host is ASCII; write an international name in its xn-- form"
    end

    rest = rest.gsub(/%(?!\h\h)/n, "%25")
    Source.parse_https(host + Bytes.percent_encode(rest, "!$&'()*+,;=:@/?#%"))
  end

  # Returns the source of a String that begins with local://, s3:// or https://.
  def read_source(text)
    return text if text.is_a?(Source)

    Bytes.require_type("source", text, [String], "a String, or a value from local, s3 or https")
    scheme, separator, rest = Bytes.of(text).partition("://")
    unless separator == "://" && scheme.match?(/\A[a-z][a-z0-9+.-]*\z/ni)
      raise NotFound, "a source starts with local://, s3:// or https://"
    end

    scheme = "https" if scheme.casecmp?("https")
    case scheme
    when "local" then Source.parse_local(rest)
    when "s3" then Source.parse_s3(rest)
    when "https" then Source.parse_https(rest)
    else raise NotFound, "a source is local://, s3:// or https://"
    end
  end
end
